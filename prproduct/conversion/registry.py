"""Which class a layer gets under a product, and which it had before.

A layer is converted by setting its `__class__`: Parameters, hooks, flags and names stay the same objects. A layer of
exactly a known type gets the class registered for it. A subclass that keeps the known type's forward gets a class made
here that inherits from both. A subclass with a forward of its own is not converted unless it is registered, as its
forward might multiply by the weights itself.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils import parametrize

from prproduct import nn as layers
from prproduct.conversion.obstacles import obstacle, why_unknown
from prproduct.nn.encoder import UnfusedEncoder, UnfusedEncoderLayer
from prproduct.nn.layer import ProductLayer, with_product
from prproduct.nn.linear import TransposedLinear

LayerClass = type[nn.Module]
LayerT = TypeVar("LayerT", bound=type[ProductLayer])

_BY_TYPE: dict[LayerClass, LayerClass] = {
    getattr(nn, name): getattr(layers, name) for name in layers.__all__ if hasattr(nn, name)
}
_BUILT_IN = frozenset(_BY_TYPE)
_BY_NAME: dict[str, LayerClass] = {"transformers.pytorch_utils.Conv1D": TransposedLinear}
_UNFUSED: dict[LayerClass, LayerClass] = {
    nn.TransformerEncoderLayer: UnfusedEncoderLayer,
    nn.TransformerEncoder: UnfusedEncoder,
}
_MADE: dict[tuple[LayerClass, ...], LayerClass] = {}  # the classes made here, by their bases
# The attribute with the class that a class made here was made from; looked up in vars(), so that it is not inherited.
_BEFORE = "_prproduct_native_class"


def register(layer: LayerClass | str) -> Callable[[LayerT], LayerT]:
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

    A layer whose forward calls `super().forward` needs no forward for the product: derive from the layer and then from
    the class of `prproduct.nn`, which `super()` is in this order.

    >>> class Causal(torch.nn.Conv1d):
    ...     def forward(self, x):
    ...         return super().forward(torch.nn.functional.pad(x, (self.kernel_size[0] - 1, 0)))
    >>> @pr.register(Causal)
    ... class ProductCausal(Causal, pr.nn.Conv1d):
    ...     pass
    >>> pr.convert(Causal(4, 2, 3))
    ProductCausal(4, 2, kernel_size=(3,), stride=(1,), product=pr)
    """
    if not (isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, nn.Module))):
        raise TypeError(f"register takes a torch.nn.Module class or its full name, not {layer!r}")
    if isinstance(layer, str) and "." not in layer:
        raise ValueError(f"register takes a full name such as 'package.module.{layer}', not {layer!r}")
    if any(layer in (known, _full_name(known)) for known in _BUILT_IN):
        raise ValueError(f"prproduct has a class for {layer!r} already: register a subclass of it")

    def enter(layer_class: LayerT) -> LayerT:
        if not (
            isinstance(layer_class, type)
            and issubclass(layer_class, ProductLayer)
            and layer_class.forward is not nn.Module.forward
        ):
            raise TypeError(f"{layer_class!r} must derive from prproduct.nn.ProductLayer and define forward")
        if isinstance(layer, str):
            _BY_NAME[layer] = layer_class
        else:
            _BY_TYPE[layer] = layer_class
        return layer_class

    return enter


def converted_class(module: nn.Module) -> LayerClass | str:
    """Return the class of this layer under a product, or the reason why it is not converted."""
    if isinstance(module, ProductLayer):
        return type(module)
    known = _registered_base(_unparametrized_class(module))
    if known is None:
        return why_unknown(module)
    reason = obstacle(module)
    if reason:
        return reason
    try:
        target = _class_under_product(_unparametrized_class(module), known)
    except Exception as error:  # from __init_subclass__ or a metaclass
        return f"no class can be derived from {_full_name(_unparametrized_class(module))} ({error})"
    if isinstance(target, str) or not parametrize.is_parametrized(module):
        return target
    return _parametrized_like(type(module), target)


def is_known_type(module: nn.Module) -> bool:
    """Return True if the layer's type, or a base class of it, is registered."""
    return _registered_base(_unparametrized_class(module)) is not None


def native_class(module: nn.Module) -> LayerClass | None:
    """Return the class that a converted layer had before its conversion; None if it was not converted."""
    cls = type(module)
    if not parametrize.is_parametrized(module):
        return _class_before(cls)
    before = vars(cls).get(_BEFORE)
    # Parametrizations may have been added or removed since the conversion; then the old class no longer fits.
    if before is not None and _parametrized_tensors(before) == _parametrized_tensors(cls):
        return before
    base = _class_before(cls.__bases__[0])
    return None if base is None else _parametrized_like(cls, base)


def unfused_class(cls: LayerClass) -> LayerClass | None:
    """Return, for torch's encoder and its layer, the subclass without the fused kernel that bypasses their layers."""
    for fused, unfused in _UNFUSED.items():
        if issubclass(cls, fused) and not issubclass(cls, unfused):
            return unfused if cls is fused else _make_class(cls, (unfused, cls))
    return None


def _unparametrized_class(module: nn.Module) -> LayerClass:
    """Return the class of a module, without the subclass that torch.nn.utils.parametrize makes."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def _registered_base(cls: LayerClass) -> LayerClass | None:
    """Return the nearest registered base class of `cls`, or None."""
    return next((base for base in cls.__mro__ if base in _BY_TYPE or _full_name(base) in _BY_NAME), None)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of_registered(known: LayerClass) -> LayerClass:
    """Return the class of a layer of exactly this registered type."""
    layer_class = _BY_TYPE.get(known) or _BY_NAME[_full_name(known)]
    return layer_class if issubclass(layer_class, known) else _make_class(known, (layer_class, known))


def _class_under_product(cls: LayerClass, known: LayerClass) -> LayerClass | str:
    """Return the class for `known` or a subclass of it, or a reason if its own forward would bypass the product."""
    ours = _class_of_registered(known)
    if cls is known:
        return ours
    between = cls.__mro__[: cls.__mro__.index(known)]
    computing = _computing_methods(ours, known)
    overriding = next((base for base in between if vars(base).keys() & computing), None)
    if overriding is None:
        return _make_class(cls, (ours, cls))
    methods = ", ".join(sorted(vars(overriding).keys() & computing))
    return f"{_full_name(overriding)} has a {methods} of its own: register it with pr.register"


def _computing_methods(ours: LayerClass, known: LayerClass) -> set[str]:
    """Return the methods that a converted layer computes by; a subclass that overrides one may bypass the product."""
    own = (base for base in ours.__mro__ if base not in known.__mro__ and base is not ProductLayer)
    names = {name for base in own for name in vars(base) if not name.startswith("__")}
    return {"forward", "__call__", *names} - {"extra_repr", _BEFORE}


def _make_class(native: LayerClass, bases: tuple[LayerClass, ...]) -> LayerClass:
    """Return a class with these bases that looks like `native`, shows its product, and can be pickled and copied."""
    if bases in _MADE:
        return _MADE[bases]

    def extra_repr(self: Any) -> str:
        return with_product(native.extra_repr(self), self)

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        return _blank, (native,), self.__getstate__()

    names = ("__module__", "__qualname__", "__doc__")
    namespace: dict[str, Any] = {name: getattr(native, name) for name in names}
    namespace |= {"__reduce_ex__": reduce, _BEFORE: native}
    if any(issubclass(base, ProductLayer) for base in bases):
        namespace["extra_repr"] = extra_repr
    return _MADE.setdefault(
        bases, types.new_class(native.__name__, bases, exec_body=lambda body: body.update(namespace))
    )


def _blank(native: LayerClass) -> nn.Module:
    """Return an empty layer of the class made from `native`, for pickle and deepcopy to fill."""  # named in pickles
    known = _registered_base(native)
    cls = unfused_class(native) if known is None else _class_under_product(native, known)
    if cls is None or isinstance(cls, str):
        raise TypeError(
            f"{_full_name(native)} was converted by a class that is not registered here: pr.register it, then load"
        )
    return cls.__new__(cls)


def _parametrized_like(cls: LayerClass, base: LayerClass) -> LayerClass:
    """Return the class that torch would have made by parametrizing a layer of class `base`."""
    namespace = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__", _BEFORE)}
    name = f"Parametrized{base.__name__}"
    namespace |= {"__qualname__": name, _BEFORE: cls}
    return types.new_class(name, (base,), exec_body=lambda body: body.update(namespace))


def _parametrized_tensors(parametrized: LayerClass) -> set[str]:
    """Return the names of the tensors that a class made by torch.nn.utils.parametrize computes."""
    return {name for name, value in vars(parametrized).items() if isinstance(value, property)}


def _class_before(cls: LayerClass) -> LayerClass | None:
    """Return the class that layers of class `cls` had before their conversion, parametrizations aside."""
    if _BEFORE in vars(cls):
        return vars(cls)[_BEFORE]
    pairs = (*_BY_TYPE.items(), *_UNFUSED.items())
    return next((native for native, converted in pairs if converted is cls), None)
