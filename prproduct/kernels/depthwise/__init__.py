"""Depthwise convolutions: a backward of their own, plane by plane."""
