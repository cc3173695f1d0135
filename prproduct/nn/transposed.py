"""The linear layer that stores its weight transposed: GPT-2's `Conv1D`, as Hugging Face names it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer, shown


class TransposedLinear(ProductLayer):
    """Mixed in before `transformers.pytorch_utils.Conv1D` by `prproduct.convert`; its weight is (in, out)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.view(-1, x.shape[-1])  # as there: two dimensions make it the same matrix product, bit for bit
        output = functional.linear(rows, self.weight.T, self.bias, product=self.product, memory=self.product_memory)
        return output.view(*x.shape[:-1], self.nf)

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix(')')}, {shown(self)})"
