"""Products that keep the forward of w·x and change what its gradient does to the angle.

>>> import torch, prproduct as pr
>>> layer = pr.nn.Linear(784, 256)  # torch.nn.Linear, with the backward of the PR product
>>> y = layer(torch.randn(32, 784))
>>> model = pr.convert(torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
"""

from prproduct import functional, nn, products, reference
from prproduct.conversion import Check, Report, check, convert, register, report, revert
from prproduct.probe import AngleProbe

__all__ = [
    "AngleProbe",
    "Check",
    "Report",
    "check",
    "convert",
    "functional",
    "nn",
    "products",
    "reference",
    "register",
    "report",
    "revert",
]
__version__ = "0.1.0"
