"""The four projections of nn.MultiheadAttention; the input of the last is recomputed, since no hook sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prproduct import functional
from prproduct.ops.contractions import Linear
from prproduct.probe.pairings import Call, Pairing, product_of, whole

_ARGUMENTS = (
    "query",
    "key",
    "value",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)


def read_attention(layer: nn.MultiheadAttention, call: Call) -> Iterator[Pairing]:
    """The projections q, k and v of the arguments, and the projection of the heads' output."""
    query, key, value, padding_mask, need_weights, attention_mask, _, is_causal = call.arguments(*_ARGUMENTS)
    joined = call.parameter(layer, "in_proj_weight") is not None
    for place, (part, data) in enumerate((("q", query), ("k", key), ("v", value))):
        rows = slice(place * layer.embed_dim, (place + 1) * layer.embed_dim)
        parameter = "in_proj_weight" if joined else f"{part}_proj_weight"
        view = (lambda weight, rows=rows: weight[rows]) if joined else whole
        yield Pairing(part, layer, parameter, Linear(), data, view)
    masks = {"key_padding_mask": padding_mask, "attn_mask": attention_mask, "is_causal": bool(is_causal)}
    attended = _attended(layer, call, query, key, value, need_weights=need_weights is not False, **masks)
    yield Pairing("out", layer.out_proj, "weight", Linear(), attended)


def _attended(
    layer: nn.MultiheadAttention, call: Call, query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    """Return the input of the output projection, by torch's attention with the identity as output projection."""
    size, in_weight = layer.embed_dim, call.parameter(layer, "in_proj_weight")
    bias: Tensor | None = call.parameter(layer, "in_proj_bias")
    apart: list[Tensor] = [call.parameter(layer, f"{part}_proj_weight") for part in "qkv"]
    identity = torch.eye(size, dtype=query.dtype, device=query.device)
    product = product_of(layer)
    if not product.has_native_forward:  # torch's attention computes the inner product only
        weights = apart if in_weight is None else in_weight.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        query, key, value = (
            functional.linear(data, weight, bias, product=product)
            for data, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        in_weight, bias, apart = None, None, [identity] * 3
    swap = layer.batch_first and query.dim() == 3
    if swap:
        query, key, value = (data.transpose(0, 1) for data in (query, key, value))
    attended, _ = F.multi_head_attention_forward(
        query,
        key,
        value,
        size,
        layer.num_heads,
        in_weight,
        bias,
        layer.bias_k,
        layer.bias_v,
        layer.add_zero_attn,
        layer.dropout,
        identity,
        None,
        training=layer.training,
        use_separate_proj_weight=in_weight is None,
        q_proj_weight=apart[0],
        k_proj_weight=apart[1],
        v_proj_weight=apart[2],
        **options,
    )
    return attended.transpose(0, 1) if swap else attended
