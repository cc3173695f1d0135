"""Which class a layer gets under a product, which it had before, and why some layers are not converted.

A layer is converted by setting its `__class__`: Parameters, hooks, flags and names stay the same objects. A layer of
exactly a known type gets the class registered for it. A subclass that keeps the known type's forward, or only prepares
the input for it, gets a class made here that inherits from both.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from prproduct import nn as layers
from prproduct.nn.encoder import UnfusedEncoder, UnfusedEncoderLayer
from prproduct.nn.layer import ProductLayer, shown
from prproduct.nn.transposed import TransposedLinear

Layer = type[nn.Module]
Rule = TypeVar("Rule", bound=type[ProductLayer])

_BY_TYPE: dict[Layer, Layer] = {
    getattr(nn, name): getattr(layers, name) for name in layers.__all__ if hasattr(nn, name)
}
_BUILT_IN = frozenset(_BY_TYPE)
_BY_NAME: dict[str, Layer] = {"transformers.pytorch_utils.Conv1D": TransposedLinear}
_UNFUSED: dict[Layer, Layer] = {
    nn.TransformerEncoderLayer: UnfusedEncoderLayer,
    nn.TransformerEncoder: UnfusedEncoder,
}
_DERIVED: dict[tuple[Layer, ...], Layer] = {}
# The attribute with the class that a class made here was made from; looked up in vars(), so that it is not inherited.
_NATIVE = "_prproduct_native_class"


def register(layer: Layer | str) -> Callable[[Rule], Rule]:
    """Register the class that `convert` gives to layers of a type.

    The decorated class derives from `prproduct.nn.ProductLayer` and defines a forward that uses `self.product` and
    `self.product_memory`; everything else is inherited from the layer's own class. A type may be given as a string,
    "package.module.Class", so that its package need not be imported.

    >>> import torch, prproduct as pr
    >>> class Scaled(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return 2 * torch.nn.functional.linear(x, self.weight, self.bias)
    >>> @pr.register(Scaled)
    ... class ProductScaled(pr.nn.ProductLayer):
    ...     def forward(self, x):
    ...         options = {"product": self.product, "memory": self.product_memory}
    ...         return 2 * pr.functional.linear(x, self.weight, self.bias, **options)
    >>> pr.convert(Scaled(4, 2))
    Scaled(in_features=4, out_features=2, bias=True, product=pr)
    """
    if not (isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, nn.Module))):
        raise TypeError(f"register takes a torch.nn.Module class or its full name, not {layer!r}")
    if isinstance(layer, str) and "." not in layer:
        raise ValueError(f"register takes a full name such as 'package.module.{layer}', not {layer!r}")
    if any(layer in (known, _full_name(known)) for known in _BUILT_IN):
        raise ValueError(f"prproduct has a class for {layer!r} already: register a subclass of it")

    def enter(rule: Rule) -> Rule:
        if not (isinstance(rule, type) and issubclass(rule, ProductLayer) and rule.forward is not nn.Module.forward):
            raise TypeError(f"{rule!r} must derive from prproduct.nn.ProductLayer and define forward")
        if isinstance(layer, str):
            _BY_NAME[layer] = rule
        else:
            _BY_TYPE[layer] = rule
        return rule

    return enter


def converted_class(module: nn.Module) -> Layer | str:
    """Return the class of this layer under a product, or the reason why it is not converted."""
    if isinstance(module, ProductLayer):
        return type(module)
    found = _known(_plain_class(module))
    if found is None:
        return _why_unknown(module)
    obstacle = _obstacle(module)
    if obstacle:
        return obstacle
    try:
        target = _mixed(_plain_class(module), found)
    except Exception as error:  # from __init_subclass__ or a metaclass
        return f"no class can be derived from {_full_name(_plain_class(module))} ({error})"
    if isinstance(target, str) or not parametrize.is_parametrized(module):
        return target
    return _parametrized_like(type(module), target)


def native_class(module: nn.Module) -> Layer:
    """Return the class that a converted layer had before its conversion."""
    cls = type(module)
    if not parametrize.is_parametrized(module):
        return _native(cls)
    before = vars(cls).get(_NATIVE)
    if before is not None and _tensors_of(before) == _tensors_of(cls):
        return before
    return _parametrized_like(cls, _native(cls.__bases__[0]))


def unfused_class(cls: Layer) -> Layer | None:
    """Return, for torch's encoder and its layer, the subclass without the fused kernel that bypasses their layers."""
    for fused, unfused in _UNFUSED.items():
        if issubclass(cls, fused) and not issubclass(cls, unfused):
            return unfused if cls is fused else _derived(cls, unfused, cls)
    return None


def _plain_class(module: nn.Module) -> Layer:
    """Return the class of a module, without the subclass that torch.nn.utils.parametrize makes."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def _known(cls: Layer) -> Layer | None:
    """Return the nearest registered base class of `cls`, or None."""
    return next((base for base in cls.__mro__ if base in _BY_TYPE or _full_name(base) in _BY_NAME), None)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _exact(known: Layer) -> Layer:
    """Return the class of a layer of exactly this registered type."""
    rule = _BY_TYPE.get(known) or _BY_NAME[_full_name(known)]
    return rule if issubclass(rule, known) else _derived(known, rule, known)


def _mixed(cls: Layer, known: Layer) -> Layer | str:
    """Return the class for a subclass `cls` of `known`, or a reason if its own forward would bypass the product."""
    ours = _exact(known)
    if cls is known:
        return ours
    between = cls.__mro__[: cls.__mro__.index(known)]
    rewritten = [base for base in between if vars(base).keys() & _computing(ours, known)]
    if not rewritten:
        return _derived(cls, ours, cls)
    if all(_only_prepares(base, between, ours, known) for base in rewritten):
        return _derived(cls, cls, ours)
    return f"{_full_name(rewritten[0])} has a forward of its own: teach it with pr.register"


def _derived(native: Layer, *bases: Layer) -> Layer:
    """Return a class with these bases that looks like `native`, shows its product, and can be pickled and copied."""
    if bases in _DERIVED:
        return _DERIVED[bases]

    def extra_repr(self: Any) -> str:
        return ", ".join(part for part in (native.extra_repr(self), shown(self)) if part)

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        return _blank, (native,), self.__getstate__()

    names = ("__module__", "__qualname__", "__doc__")
    namespace: dict[str, Any] = {name: getattr(native, name) for name in names}
    namespace |= {"__reduce_ex__": reduce, _NATIVE: native}
    if any(issubclass(base, ProductLayer) for base in bases):
        namespace["extra_repr"] = extra_repr
    return _DERIVED.setdefault(
        bases, types.new_class(native.__name__, bases, exec_body=lambda body: body.update(namespace))
    )


def _blank(native: Layer) -> nn.Module:
    """Return an empty layer of the class derived from `native`, for pickle and deepcopy to fill."""
    known = _known(native)
    cls = unfused_class(native) if known is None else _mixed(native, known)
    if cls is None or isinstance(cls, str):
        raise TypeError(f"{_full_name(native)} was converted by a rule that is not here: pr.register it, then load")
    return cls.__new__(cls)


def _parametrized_like(cls: Layer, base: Layer) -> Layer:
    """Return the class that torch would have made by parametrizing a layer of class `base`."""
    namespace = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__", _NATIVE)}
    name = f"Parametrized{base.__name__}"
    namespace |= {"__qualname__": name, _NATIVE: cls}
    return types.new_class(name, (base,), exec_body=lambda body: body.update(namespace))


def _tensors_of(parametrized: Layer) -> set[str]:
    return {name for name, value in vars(parametrized).items() if isinstance(value, property)}


def _native(cls: Layer) -> Layer:
    if _NATIVE in vars(cls):
        return vars(cls)[_NATIVE]
    pairs = (*_BY_TYPE.items(), *_UNFUSED.items())
    known = next((native for native, converted in pairs if converted is cls), None)
    if known is None:
        raise TypeError(
            f"{_full_name(cls)} was not made by convert and has no class to go back to: convert it to 'p' instead"
        )
    return known


def _computing(ours: Layer, known: Layer) -> set[str]:
    """Return the methods that a converted layer computes by; a subclass that overrides one may bypass the product."""
    own = (base for base in ours.__mro__ if base not in known.__mro__ and base is not ProductLayer)
    names = {name for base in own for name in vars(base) if not name.startswith("__")}
    return {"forward", "__call__", *names} - {"extra_repr", _NATIVE}


def _only_prepares(base: Layer, between: tuple[type, ...], ours: Layer, known: Layer) -> bool:
    """Return True if a class overrides only forward, calls super().forward in it, and multiplies no weights itself.

    Judged by the names in its code: running the forward needs an input of unknown shape, and its source may be absent.
    A name that may hide a multiplication (`weight`, `matmul`, `getattr`, …) means no; then pr.register is asked for.
    """
    if vars(base).keys() & _computing(ours, known) != {"forward"}:
        return False
    names = set(_names_used(base.forward, between))
    weights = {
        name for name in names if name.startswith(("weight", "bias", "_parameters", "_conv", "in_proj", "_flat"))
    }
    loopholes = names & {"parameters", "named_parameters", "state_dict", "getattr", "__dict__", "vars", "_modules"}
    products = {name for name in names if name in _MULTIPLYING or name.startswith("conv")}
    return {"super", "forward"} <= names and not (weights or loopholes or products)


_MULTIPLYING = {"linear", "bilinear", "matmul", "mm", "bmm", "mv", "einsum", "tensordot", "addmm", "addmv", "baddbmm"}


def _names_used(function: Any, between: tuple[type, ...], seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names in a method's code, and in the code of methods of the classes `between` that it may call."""
    codes = [function.__code__] if isinstance(function, types.FunctionType) else []
    if not codes:
        yield "getattr"  # a builtin, partial or scripted method has no code to look at
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        yield from code.co_names
        for name in set(code.co_names) - seen - {"forward"}:
            for base in between:
                method = vars(base).get(name)
                if isinstance(method, (types.FunctionType, staticmethod, classmethod, property)):
                    inner = getattr(method, "fget", None) or getattr(method, "__func__", method)
                    yield from _names_used(inner, between, seen | {name})


def _obstacle(module: nn.Module) -> str:
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


_LEFT: list[tuple[tuple[type, ...], str]] = [
    ((nn.Embedding, nn.EmbeddingBag), "embedding: looks rows up, multiplies nothing"),
    ((nn.Bilinear,), "bilinear: two inputs meet each weight"),
    ((nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), "normalisation: one factor a feature"),
    ((nn.PReLU,), "activation: one factor a feature"),
    ((nn.ParameterList, nn.ParameterDict), "parameters for others to use"),
    ((torch.jit.ScriptModule,), "TorchScript: its code is fixed"),
]


UNKNOWN = "no layer type that prproduct knows: if it multiplies weights with data, teach it with pr.register"


def _why_unknown(module: nn.Module) -> str:
    if is_quantized(module):
        return "quantized"
    for types_, why in _LEFT:
        if isinstance(module, types_):
            return why
    if "Norm" in type(module).__name__:
        return "normalisation: one factor a feature"
    return UNKNOWN


def is_quantized(module: nn.Module) -> bool:
    """Return True for torch's quantized layers, which pack their weights."""
    name = type(module).__module__
    return name.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")) and hasattr(module, "weight")
