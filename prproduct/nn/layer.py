"""`ProductLayer`: what every drop-in layer adds to torch's layer."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import nn
from torch._C import _are_functorch_transforms_active  # private: torch has no public one
from torch.autograd import forward_ad

from prproduct.ops.autograd import Memory, check_memory
from prproduct.products import P, Product, resolve


class ProductLayer(nn.Module):
    """Base class of all layers under a product, before torch's in the bases: `class Linear(ProductLayer, nn.Linear)`.

    It takes `product=` and `memory=`, keeps them as `product` and `product_memory`, and shows them in the repr.
    """

    product_memory: Memory = "save"
    __signature__: ClassVar[inspect.Signature]
    # Keys in checkpoints of the paper's own code that are ignored if redundant: {key: the parameter of which it is a
    # second name, or None for a kernel of ones}.
    redundant_keys: ClassVar[dict[str, str | None]] = {}

    def __init__(self, *args: Any, product: str | Product = "pr", memory: Memory = "save", **kwargs: Any) -> None:
        product = resolve(product)
        super().__init__(*args, **kwargs)
        self.product = product
        if check_memory(memory) != "save":
            self.product_memory = memory

    @property
    def product(self) -> Product:
        """The layer's product; it may be replaced by another one, given by name or as an object."""
        try:
            return vars(self)["product"]
        except KeyError:  # torch's own __init__ has not ended, or another class was set by hand
            raise AttributeError(f"{type(self).__name__} has no product yet") from None

    @product.setter
    def product(self, value: str | Product) -> None:
        vars(self)["product"] = resolve(value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Set the signature that `help` and editors show: torch's own arguments, then `product` and `memory`."""
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith(__package__):  # a user's class, or one that torch.nn.utils.parametrize makes
            if "__init__" in vars(cls):
                own = inspect.signature(cls.__init__)
                cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])
            return
        torch_layer = next(base for base in cls.__mro__ if base.__module__.startswith("torch.nn"))
        signature = inspect.signature(torch_layer)
        keyword = inspect.Parameter.KEYWORD_ONLY
        product = inspect.Parameter("product", keyword, default="pr", annotation="str | Product")
        memory = inspect.Parameter("memory", keyword, default="save", annotation="Memory")
        parameters = list(signature.parameters.values())
        takes_keywords = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        place = len(parameters) - takes_keywords  # before **kwargs
        parameters[place:place] = [product, memory]
        cls.__signature__ = signature.replace(parameters=parameters)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, twin in self.redundant_keys.items():
            value = state_dict.get(prefix + key)
            if value is None:
                continue
            redundant = value.eq(1).all() if twin is None else value.equal(state_dict.setdefault(prefix + twin, value))
            if redundant:  # otherwise it stays, and torch calls it unexpected
                del state_dict[prefix + key]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return with_product(super().extra_repr(), self)


def with_product(text: str, layer: ProductLayer) -> str:
    """Return what a native layer shows, its product, and its memory setting if it is not "save"."""
    memory = "" if layer.product_memory == "save" else f"memory={layer.product_memory}"
    return ", ".join(filter(None, (text, f"product={layer.product}", memory)))


def runs_natively(layer: ProductLayer) -> bool:
    """Return True if torch's own forward serves: for `p`, and without gradients for a product with torch's forward."""
    # In a dual level the product's own forward runs, which refuses tangents. Private: torch has no public test for one.
    in_dual_level = forward_ad._current_level >= 0
    gradients = torch.is_grad_enabled() or _are_functorch_transforms_active() or in_dual_level
    return type(layer.product) is P or (layer.product.has_native_forward and not gradients)
