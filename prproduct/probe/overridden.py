"""Measuring a subclass with its own forward where it calls super().forward, on the data that arrive there.

`class Mine(nn.Linear)` may normalise its input and then call super().forward. Forward hooks see the input before that
only, and replacing nn.Linear.forward would affect every other model and thread. So while a sampled forward runs, the
layer has a subclass of its class, with one more class before nn.Linear in the method resolution order:

    Mine, Linear        becomes        Mine (made here), Mine, WatchedLinear (made here), Linear

WatchedLinear.forward calls Linear.forward, and gives its arguments and output to the probe; no number changes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

_KNOWN_PACKAGES = ("torch.nn.modules.", "prproduct.nn.", "transformers.pytorch_utils")
_watchers: dict[nn.Module, list[ForwardWatcher]] = {}  # of a layer: one for each probe
_MADE_HERE: set[type] = set()


def has_own_forward(layer: nn.Module) -> bool:
    """Return True if the layer's forward is defined by a class that is not torch's or prproduct's."""
    classes = _classes_with_forward(type(layer))
    return "forward" not in vars(layer) and not (classes and _is_known(classes[0]))


def has_known_base(layer: nn.Module) -> bool:
    """Return True if the layer derives from a class of torch or prproduct with a forward."""
    return any(map(_is_known, _classes_with_forward(type(layer))))


class ForwardWatcher:
    """Calls `before(layer, args)` and `after(layer, args, kwargs, output)` around super().forward, until `remove`."""

    def __init__(self, layer: nn.Module, before: Callable[..., None] | None, after: Callable[..., None]) -> None:
        self.layer, self.before, self.after = layer, before, after
        if layer not in _watchers:
            layer.__class__ = _watched_class(type(layer))  # type: ignore[arg-type]
        _watchers.setdefault(layer, []).append(self)

    def remove(self) -> None:
        """Stop watching; with the last watcher of a layer, restore its class."""
        watchers = _watchers[self.layer]
        watchers.remove(self)
        if not watchers:
            del _watchers[self.layer]
            if type(self.layer) in _MADE_HERE:  # a lazy layer may have changed its class in its first forward
                self.layer.__class__ = type(self.layer).__bases__[0]


def _classes_with_forward(cls: type[nn.Module]) -> list[type]:
    return [c for c in cls.__mro__ if "forward" in vars(c) and c is not nn.Module and c not in _MADE_HERE]


def _is_known(cls: type) -> bool:
    return cls.__module__.startswith(_KNOWN_PACKAGES)


@functools.cache
def _watched_class(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of `cls` in which the forward of its torch or prproduct base is watched."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        watchers = list(_watchers.get(self, ()))
        for watcher in watchers:
            if watcher.before is not None:
                watcher.before(self, args)
        output = super(watched_base, self).forward(*args, **kwargs)
        for watcher in watchers:
            watcher.after(self, args, kwargs, output)
        return output

    base = next(filter(_is_known, _classes_with_forward(cls)))
    watched_base: Any = types.new_class(
        f"Watched{base.__name__}", (base,), exec_body=lambda body: body.update(forward=forward)
    )
    looks = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    watched = types.new_class(cls.__name__, (cls, watched_base), exec_body=lambda body: body.update(looks))
    _MADE_HERE.update((watched_base, watched))
    return watched
