"""The fully connected layer (the paper's PR-FC), and Hugging Face's form of it with a transposed weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer, with_product


class Linear(ProductLayer, torch.nn.Linear):
    """`torch.nn.Linear` under a product: same arguments, same initialisation, same state_dict.

    >>> Linear(784, 256)
    Linear(in_features=784, out_features=256, bias=True, product=pr)
    """

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias, product=self.product, memory=self.product_memory)


class TransposedLinear(ProductLayer):
    """`transformers.pytorch_utils.Conv1D`, GPT-2's linear layer with a weight (in, out), under a product.

    `prproduct.convert` makes a class of the two, so that transformers need not be imported here.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.view(-1, x.shape[-1])  # two dimensions, as in Conv1D: the same matrix product, bit for bit
        output = functional.linear(rows, self.weight.T, self.bias, product=self.product, memory=self.product_memory)
        return output.view(*x.shape[:-1], self.nf)

    def __repr__(self) -> str:
        return with_product(super().__repr__().removesuffix(")"), self) + ")"
