"""Products that keep the forward of w·x and change what its gradient does to the angle.

>>> import torch, prproduct as pr
>>> layer = pr.nn.Linear(784, 256)  # torch.nn.Linear, with the backward of the PR product
>>> y = layer(torch.randn(32, 784))
"""

from prproduct import functional, nn, products, reference
from prproduct.probe import AngleProbe

__all__ = ["AngleProbe", "functional", "nn", "products", "reference"]
__version__ = "0.1.0"
