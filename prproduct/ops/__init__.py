"""From a product to a gradient: the rule in plain torch, the same in C++, and the autograd function of all layers."""
