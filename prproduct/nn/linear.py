"""The fully connected layer (the paper's PR-FC)."""

from __future__ import annotations

import torch
from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer


class Linear(ProductLayer, torch.nn.Linear):
    """`torch.nn.Linear` under a product: same arguments, same initialisation, same state_dict.

    >>> Linear(784, 256)
    Linear(in_features=784, out_features=256, bias=True, product=pr)
    """

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias, product=self.product, memory=self.product_memory)
