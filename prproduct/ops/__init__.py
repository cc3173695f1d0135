"""From a product to a gradient: the rule in plain torch and by kernels, and the autograd function of all layers."""
