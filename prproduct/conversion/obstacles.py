"""Why a layer is not converted: its weights or its type."""

from __future__ import annotations

import torch
from torch import nn


def obstacle(module: nn.Module) -> str:
    """Return why a layer of a known type cannot be converted, or ""."""
    if "forward" in vars(module):
        return "its forward was replaced on the instance: convert first, then let others wrap it"
    if hasattr(module, "product"):
        return "it has an attribute `product` of its own"
    for weight in module.parameters():
        kind = type(weight)
        if weight.layout is not torch.strided or kind.__module__.startswith("torch.sparse"):
            return f"sparse weights ({str(weight.layout).removeprefix('torch.')}): make them dense first"
        if weight.is_complex():
            return "complex weights have no angle of this kind"
        if not weight.is_floating_point() or not kind.__module__.startswith("torch."):
            return f"quantized or special weights ({kind.__name__}, {str(weight.dtype).removeprefix('torch.')})"
    return ""


_REASONS: list[tuple[tuple[type, ...], str]] = [
    ((nn.Embedding, nn.EmbeddingBag), "embedding: looks rows up, multiplies nothing"),
    ((nn.Bilinear,), "bilinear: two inputs meet each weight"),
    ((nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), "normalisation: one factor a feature"),
    ((nn.PReLU,), "activation: one factor a feature"),
    ((nn.ParameterList, nn.ParameterDict), "parameters for others to use"),
    ((torch.jit.ScriptModule,), "TorchScript: its code is fixed"),
]


UNKNOWN = "no layer type that prproduct knows: if it multiplies weights with data, register it with pr.register"


def why_unknown(module: nn.Module) -> str:
    """Return why a layer of no registered type is not converted."""
    if is_quantized(module):
        return "quantized"
    for kinds, reason in _REASONS:
        if isinstance(module, kinds):
            return reason
    if "Norm" in type(module).__name__:
        return "normalisation: one factor a feature"
    return UNKNOWN


def is_quantized(module: nn.Module) -> bool:
    """Return True for torch's quantized layers, which pack their weights."""
    name = type(module).__module__
    return name.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")) and hasattr(module, "weight")
