"""Multi-head attention: the four projections are under the product, the scores between queries and keys are not."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer, runs_natively
from prproduct.products import P


class MultiheadAttention(ProductLayer, torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` under a product.

    >>> attention = MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(3, 5, 8)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's; `is_causal` is a hint that the mask given is causal, and the mask itself is used."""
        arguments = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if runs_natively(self):
            return super().forward(*arguments)
        if not self._fits(query, key, value, key_padding_mask, attn_mask, is_causal):
            return self._as_native().forward(*arguments)  # torch says what is wrong
        batched = query.dim() == 3
        batch_axis = 0 if self.batch_first else 1
        q, k, v = self._project(query, key, value)
        if not batched:
            q, k, v = (t.unsqueeze(batch_axis) for t in (q, k, v))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))  # (batch, length, embedding)
        k, v, added = self._extend(k, v)
        mask = _merge_masks(key_padding_mask, attn_mask, added, q.shape[0], self.num_heads, q.dtype)
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v)
        )  # (batch, heads, length, …)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * q.shape[-1] ** -0.5) @ k.mT
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = attended.transpose(1, 2).flatten(2)  # (batch, length, embedding)
        output = functional.linear(output, self.out_proj.weight, self.out_proj.bias, product=self.product)
        output = output if self.batch_first else output.transpose(0, 1)
        if not batched:
            output, weights = output.squeeze(batch_axis), None if weights is None else weights.squeeze(0)
        return output, weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """One product for self-attention; three otherwise."""
        joined = self.__dict__["_qkv_same_embed_dim"]
        if joined and query is key is value:
            projected = functional.linear(query, self.in_proj_weight, self.in_proj_bias, product=self.product)
            return projected.chunk(3, dim=-1)
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights: Sequence[Tensor] = self.in_proj_weight.chunk(3) if joined else apart
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        triples = zip((query, key, value), weights, biases, strict=True)
        return tuple(functional.linear(x, weight, bias, product=self.product) for x, weight, bias in triples)

    def _extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with the learned and the zero one at their end, and how many those are."""
        length = k.shape[1]
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], 1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], 1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return k, v, k.shape[1] - length

    def _fits(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> bool:
        """Whether torch would take these arguments."""
        if query.dim() not in (2, 3) or not (query.dim() == key.dim() == value.dim()):
            return False
        batched, time_axis = query.dim() == 3, 1 if self.batch_first and query.dim() == 3 else 0
        batch = query.shape[1 - time_axis] if batched else 1
        target, source = query.shape[time_axis], key.shape[time_axis]
        return (
            query.shape[-1] == self.embed_dim
            and key.shape[-1] == self.kdim
            and value.shape[-1] == self.vdim
            and key.shape[:-1] == value.shape[:-1]
            and (not batched or key.shape[1 - time_axis] == batch)
            and (attn_mask is not None or not is_causal)
            and _is_mask(key_padding_mask, [(batch, source) if batched else (source,)])
            and _is_mask(attn_mask, [(target, source), (batch * self.num_heads, target, source)])
        )

    def _as_native(self) -> MultiheadAttention:
        native = copy.copy(self)
        native.product = P()
        return native

    # torch.nn.TransformerEncoderLayer asks for this before it takes its fused inference path, which calls no forward
    # of ours and so must be off for a product with a value of its own.
    @property
    def _qkv_same_embed_dim(self) -> bool:
        product = self.__dict__.get("product")  # not there yet while torch's __init__ runs
        return self.__dict__["_qkv_same_embed_dim"] and (product is None or product.has_native_forward)

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_qkv_same_embed_dim"] = value


def _is_mask(mask: Tensor | None, shapes: list[tuple[int, ...]]) -> bool:
    return mask is None or (mask.shape in shapes and (mask.dtype == torch.bool or mask.is_floating_point()))


def _merge_masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, added: int, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """What is added to the scores (batch, heads, target, source): −∞ where either mask forbids."""
    padding, attention = (
        None if mask is None else F.pad(_additive(mask, dtype), (0, added)) for mask in (key_padding_mask, attn_mask)
    )
    if padding is not None:
        padding = padding[:, None, None]
    if attention is not None and attention.dim() == 3:
        attention = attention.unflatten(0, (batch, heads))
    if padding is None or attention is None:
        return attention if padding is None else padding
    return padding + attention


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
