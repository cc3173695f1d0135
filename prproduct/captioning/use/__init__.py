"""Applying trained captioners (`prproduct caption`); imports no training code and no toy world."""
