"""Why a layer is not converted: its weights, its type, or a forward that would bypass the product."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Sequence

import torch
from torch import nn


def leaves_products_to_super(method: object, classes: Sequence[type]) -> bool:
    """Return True if a subclass's forward calls super().forward and names nothing that could multiply weights.

    The names in its bytecode decide: tracing a forward needs an input, whose shape only the whole model knows, and its
    source file may be absent. If in doubt the answer is False, and the report asks for pr.register.

    `classes` are the subclasses of the known type; their methods count where forward may call them.
    """
    names = _names_used(method, classes)
    return {"super", "forward"} <= names and not any(map(_COULD_MULTIPLY.fullmatch, names))


_COULD_MULTIPLY = re.compile(
    "(weight|bias|in_proj|conv|_conv|_flat|_parameters).*"  # the layer's own weights, and its inner methods
    "|linear|bilinear|matmul|mm|bmm|mv|einsum|tensordot|addmm|addmv|baddbmm"
    "|parameters|named_parameters|state_dict|getattr|vars|__dict__|_modules"  # ways to weights without their names
)


def _names_used(method: object, classes: Sequence[type]) -> set[str]:
    """Return the names in a method's code, and in the code of methods and properties of `classes` that it may call.

    The operator @ counts as `matmul`.
    """
    names: set[str] = set()
    pending = [_code(method)]
    while pending:
        code = pending.pop()
        if code is None:
            names.add("getattr")  # a builtin, partial or scripted method: it could do anything
            continue
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        called = set(code.co_names) - names - {"forward"}
        members = [vars(cls)[name] for cls in classes for name in called & vars(cls).keys()]
        pending += [_code(member) for member in members if isinstance(member, _METHODS)]
        names |= set(code.co_names)
        if any(instruction.argrepr in ("@", "@=") for instruction in dis.get_instructions(code)):
            names.add("matmul")
    return names


_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def _code(member: object) -> types.CodeType | None:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return function.__code__ if isinstance(function, types.FunctionType) else None


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
