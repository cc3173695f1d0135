"""`convert` puts the layers of a model under a product, in place; `revert` restores torch's own classes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

from prproduct.conversion.obstacles import UNKNOWN
from prproduct.conversion.registry import LayerClass, converted_class, is_known_type, native_class, unfused_class
from prproduct.nn.encoder import UnfusedEncoder, UnfusedEncoderLayer
from prproduct.nn.layer import ProductLayer
from prproduct.ops.autograd import Memory, check_memory
from prproduct.products import Product, resolve

Model = TypeVar("Model", bound=nn.Module)
Filter = Callable[[nn.Module, str], bool]
Verdicts = dict[str, tuple[nn.Module, LayerClass | str]]  # {name: (module, its converted class or why it has none)}
Classes = list[tuple[nn.Module, LayerClass, dict[str, Any]]]  # of each module: its class and ATTRIBUTES

ATTRIBUTES = ("product", "product_memory")  # what a converted layer has in addition
_LARGE_SHARE = 0.25
_HELD = "its attention takes the weights and never calls it"


def convert(
    module: Model,
    product: str | Product | None = None,
    *,
    filter_fn: Filter | None = None,
    memory: Memory | None = None,
) -> Model:
    """Put the layers of a model, or one layer, under a product, in place, and return the model.

    Parameters, buffers, hooks, flags, names and state_dict stay the same objects, so that an existing optimizer remains
    valid. `filter_fn(layer, name)` selects among the layers that can be converted, a shared one by its first name; call
    again for other layers and other products. `report` shows the result.

    The defaults are product="pr" and memory="save"; a layer that is converted already keeps what is not given. Backward
    needs each layer's output: "save" saves it, which takes no new memory if the next layer saves it too; "recompute"
    computes it again.

    >>> import torch, prproduct as pr
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> pr.convert(model, filter_fn=lambda layer, name: name != "2")
    Sequential(
      (0): Linear(in_features=8, out_features=16, bias=True, product=pr)
      (1): ReLU()
      (2): Linear(in_features=16, out_features=2, bias=True)
    )
    """
    require_module(module, "convert")
    product = None if product is None else resolve(product)
    memory = None if memory is None else check_memory(memory)
    verdicts = verdicts_of(module)
    possible = {name: target for name, (_, target) in verdicts.items() if not isinstance(target, str)}
    chosen = {
        name: target for name, target in possible.items() if filter_fn is None or filter_fn(verdicts[name][0], name)
    }
    if not chosen:
        raise ValueError(_why_nothing(module, verdicts, len(possible)))
    with _all_or_nothing(module):
        for name, target in chosen.items():
            layer = verdicts[name][0]
            layer.__class__ = target
            attributes = vars(layer)
            attributes["product"] = product or attributes.get("product") or resolve("pr")
            if memory is not None:
                attributes["product_memory"] = memory
            if attributes.get("product_memory") == "save":  # the default
                del attributes["product_memory"]
        if any(isinstance(layer, ProductLayer) and not layer.product.has_native_forward for layer in module.modules()):
            for encoder in module.modules():
                encoder.__class__ = unfused_class(type(encoder)) or type(encoder)
        _warn_of_left_weights(verdicts)  # an error if warnings are errors
    return module


def _warn_of_left_weights(verdicts: Verdicts) -> None:
    """Warn if more than a quarter of a model's matrices belong to layers that multiply and cannot be converted.

    Their type is unknown (mixtures of experts hold all experts in one parameter that they multiply by `bmm`), or a
    known one with a forward of its own.
    """
    converted = left = 0
    largest: tuple[int, str] = (0, "")
    for name, (layer, target) in verdicts.items():
        if "parametrizations" in name.split("."):  # counted with their layer
            continue
        size = sum(p.numel() for p in layer.parameters(recurse=False) if not is_lazy(p) and p.dim() > 1)
        if not isinstance(target, str):
            converted += size
        elif target == UNKNOWN or (is_known_type(layer) and target != _HELD):
            left += size
            largest = max(largest, (size, f"{type(layer).__name__} at {name or 'the root'}: {target}"))
    if left > _LARGE_SHARE * (converted + left):
        warnings.warn(
            f"convert: {left / (converted + left):.0%} of the weights in matrices stay under the inner product; the "
            f"largest are those of {largest[1]}",
            stacklevel=3,
        )


def revert(module: Model) -> Model:
    """Restore the torch class of every converted layer, in place, and return the model.

    >>> import torch, prproduct as pr
    >>> pr.revert(pr.convert(torch.nn.Linear(8, 16)))
    Linear(in_features=8, out_features=16, bias=True)
    """
    require_module(module, "revert")
    with _all_or_nothing(module):
        left = revert_if_possible(module)
        if left:
            cls = type(left[0])
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} was not made by convert and has no class to go back to: convert "
                "it to 'p' instead"
            )
    return module


def revert_if_possible(module: nn.Module) -> list[nn.Module]:
    """Restore the torch class of every converted layer, and return the layers that have none.

    These are of a subclass of one of this package's layers, which a user wrote.
    """
    ours = (ProductLayer, UnfusedEncoder, UnfusedEncoderLayer)
    natives: list[tuple[nn.Module, LayerClass | None]]
    natives = [(layer, native_class(layer)) for layer in module.modules() if isinstance(layer, ours)]
    for layer, native in natives:
        if native is not None:
            layer.__class__ = native
            for name in ATTRIBUTES:
                vars(layer).pop(name, None)
    return [layer for layer, native in natives if native is None]


def verdicts_of(module: nn.Module) -> Verdicts:
    """Return {name: (module, class it would become, or the reason why it is not converted)}.

    A module with several names has its first.
    """
    held = holding_attentions(module)
    return {
        name: (layer, _HELD if id(layer) in held else converted_class(layer)) for name, layer in module.named_modules()
    }


def holding_attentions(module: nn.Module) -> dict[int, nn.MultiheadAttention]:
    """Return {id(out_proj): attention} of each attention that uses its out_proj's weight without calling it."""
    attentions = [m for m in module.modules() if isinstance(m, nn.MultiheadAttention)]
    native = nn.MultiheadAttention.forward
    return {
        id(m.out_proj): m for m in attentions if type(m).forward is native or not isinstance(converted_class(m), str)
    }


def _why_nothing(module: nn.Module, verdicts: Verdicts, possible: int) -> str:
    """Return the message for a model in which no layer was chosen; `possible` is how many could have been."""
    if possible:
        return f"nothing to convert: filter_fn selected none of the {possible} layers that can be converted"
    holders = [(layer, why) for layer, why in verdicts.values() if any(True for _ in layer.parameters(recurse=False))]
    kinds = Counter(f"{type(layer).__name__} ({why})" for layer, why in holders)
    found = "; ".join(f"{count} × {kind}" for kind, count in kinds.most_common(5)) or "no parameters at all"
    return f"nothing to convert in {type(module).__name__}: {found}"


def require_module(module: object, function: str) -> None:
    """Raise TypeError for anything but a module."""
    if isinstance(module, type):
        raise TypeError(f"{function} takes a layer or a model, not the class {module.__name__}: make one of it first")
    if not isinstance(module, nn.Module):
        raise TypeError(f"{function} takes a torch.nn.Module, not {type(module).__name__}")


def classes_of(module: nn.Module) -> Classes:
    """Return every module with its class, its product and its memory setting."""
    return [(m, type(m), {key: vars(m)[key] for key in vars(m).keys() & set(ATTRIBUTES)}) for m in module.modules()]


def set_classes(classes: Classes) -> None:
    """Restore what `classes_of` returned."""
    for m, cls, attributes in classes:
        m.__class__ = cls
        for name in ATTRIBUTES:
            vars(m).pop(name, None)
        vars(m).update(attributes)


@contextmanager
def _all_or_nothing(module: nn.Module) -> Iterator[None]:
    """Restore all classes and products if the context raises an error."""
    before = classes_of(module)
    try:
        yield
    except BaseException:
        set_classes(before)
        raise
