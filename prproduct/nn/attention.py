"""Multi-head attention: the four projections are under the product, the scores between queries and keys are not."""

from __future__ import annotations

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
        """Run torch's operations in torch's order and memory layouts, so that output and dropout are the same bits."""
        arguments = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if runs_natively(self):
            return super().forward(*arguments)
        if not self._fits(query, key, value, key_padding_mask, attn_mask, is_causal):
            return self._as_native().forward(*arguments)  # torch says what is wrong
        batched, dtype = query.dim() == 3, query.dtype
        query, key, value = self._time_first(query, key, value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        length, batch, _ = query.shape
        if is_causal and key_padding_mask is None and not need_weights:
            attn_mask = None  # torch trusts the hint
        else:
            is_causal = False
        q, k, v = self._project(query, key, value)
        k, v = _append(k, self.bias_k), _append(v, self.bias_v)
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).flatten(1, 2).transpose(0, 1) for t in (q, k, v))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = _merge_masks(key_padding_mask, attn_mask, k.shape[1], self.num_heads, dtype)
        dropout, sizes = self.dropout if self.training else 0.0, (batch, self.num_heads)
        if need_weights:
            attended, weights = _attend(q, k, v, mask, dropout, sizes)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended, weights = _attend_fused(q, k, v, mask, dropout, sizes, is_causal), None
        output = functional.linear(
            attended.flatten(2).flatten(0, 1),  # (length · batch, embed)
            self.out_proj.weight,
            self.out_proj.bias,
            product=self.product,
            memory=self.product_memory,
        )
        output = output.unflatten(0, (length, batch))
        if not batched:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return output.transpose(0, 1) if self.batch_first else output, weights

    def _time_first(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value as (length, batch, features).

        As in torch, a batched tensor that is passed twice stays one, which `_project` tests with `is`.
        """
        if tensors[0].dim() == 2:
            return tuple(t.unsqueeze(1) for t in tensors)
        if not self.batch_first:
            return tensors
        transposed = {id(t): t.transpose(0, 1) for t in tensors}
        return tuple(transposed[id(t)] for t in tensors)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return q, k and v; as in torch, one product serves all three, or key and value, if they are one tensor."""
        joined = self.__dict__["_qkv_same_embed_dim"]
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        inputs: tuple[Tensor, ...] = (query, key, value)
        sizes: tuple[int, ...] = (1, 1, 1)
        if joined and key is value:
            inputs, sizes = ((query,), (3,)) if query is key else ((query, key), (1, 2))
        rows = [size * self.embed_dim for size in sizes]
        weights: Sequence[Tensor] = self.in_proj_weight.split(rows) if joined else apart
        biases = (None,) * len(rows) if self.in_proj_bias is None else self.in_proj_bias.split(rows)
        projected: list[Tensor] = []
        for x, weight, bias, size in zip(inputs, weights, biases, sizes, strict=True):
            output = functional.linear(x, weight, bias, product=self.product, memory=self.product_memory)
            projected += _split(output, size) if size > 1 else (output,)
        return tuple(projected)

    def _fits(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> bool:
        """Return True if torch would take these arguments."""
        if query.is_nested or key.is_nested or value.is_nested:
            return False
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
        """Return a shallow copy under the inner product, which runs torch's forward."""
        native = type(self).__new__(type(self))  # not copy.copy, which parametrized modules refuse
        vars(native).update(vars(self), product=P())
        return native

    # torch.nn.TransformerEncoderLayer reads this before it takes its fused kernel, which does not call this forward
    # and so must be off for a product with its own.
    @property
    def _qkv_same_embed_dim(self) -> bool:
        product = self.__dict__.get("product")  # not there yet while torch's __init__ runs
        return self.__dict__["_qkv_same_embed_dim"] and (product is None or product.has_native_forward)

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_qkv_same_embed_dim"] = value


def _is_mask(mask: Tensor | None, shapes: list[tuple[int, ...]]) -> bool:
    """Return True if there is no mask, or one of these shapes in a dtype that torch takes."""
    return mask is None or (mask.shape in shapes and (mask.dtype == torch.bool or mask.is_floating_point()))


def _split(projected: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Return the parts of the last axis, each contiguous."""
    return projected.unflatten(-1, (parts, -1)).movedim(-2, 0).contiguous().unbind()


def _append(x: Tensor, learned: Tensor | None) -> Tensor:
    """Return keys or values with the learned one (bias_k or bias_v) at their end."""
    return x if learned is None else torch.cat([x, learned.repeat(1, x.shape[1], 1)])


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, sizes: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return weighted values (target, batch, heads, head_dim) and weights (batch, heads, target, source).

    q, k and v are (batch · heads, length, head_dim), and `sizes` is (batch, heads).
    """
    q = q * (1 / q.shape[-1]) ** 0.5
    weights = (torch.bmm(q, k.mT) if mask is None else torch.baddbmm(mask, q, k.mT)).softmax(-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights, v).transpose(0, 1).unflatten(1, sizes), weights.unflatten(0, sizes)


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, sizes: tuple[int, int], is_causal: bool
) -> Tensor:
    """Return the same weighted values by torch's fused kernel, which gives no weights."""
    if mask is not None:
        mask = mask.unsqueeze(0) if mask.shape[0] == 1 else mask.unflatten(0, sizes)
    q, k, v = (t.unflatten(0, sizes) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal).permute(2, 0, 1, 3)


def _merge_masks(
    padding: Tensor | None, attention: Tensor | None, source: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Return what is added to the scores (batch · heads, target, source), by broadcasting: −∞ where a mask forbids."""
    padding, attention = (
        None if mask is None else F.pad(_additive(mask, dtype), (0, source - mask.shape[-1]))
        for mask in (padding, attention)
    )
    if padding is not None:
        padding = padding.repeat_interleave(heads, 0).unsqueeze(1)
    if attention is not None and attention.dim() == 2:
        attention = attention.unsqueeze(0)
    if padding is None or attention is None:
        return attention if padding is None else padding
    return attention + padding


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a boolean mask as 0 and −∞; another mask is added as it is."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
