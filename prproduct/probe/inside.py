"""What goes into super().forward, in a layer of somebody else's class whose own forward changes the data before.

For the length of a sampled forward such a layer has a class that looks like its own, with one more between its own and
the class of torch or of prproduct that it derives from. There super().forward comes by; no number changes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

_KNOWN = ("torch.nn.modules.", "prproduct.nn.", "transformers.pytorch_utils")
_watchers: dict[nn.Module, list[Watcher]] = {}
_WATCHED: set[type] = set()  # the classes made here


def has_own_forward(layer: nn.Module) -> bool:
    """Whether somebody else's class says what this layer's forward does."""
    return "forward" not in vars(layer) and not _is_known(_with_forward(type(layer))[0])


def has_known_base(layer: nn.Module) -> bool:
    """Whether there is a forward below the layer's own that can be read."""
    return any(map(_is_known, _with_forward(type(layer))))


class Watcher:
    """Calls `before(layer, args)` and `after(layer, args, kwargs, output)` around super().forward, until `remove`."""

    def __init__(self, layer: nn.Module, before: Callable[..., None] | None, after: Callable[..., None]) -> None:
        self.layer, self.before, self.after = layer, before, after
        if layer not in _watchers:
            layer.__class__ = _watched(type(layer))  # type: ignore[arg-type]
        _watchers.setdefault(layer, []).append(self)

    def remove(self) -> None:
        others = _watchers[self.layer]
        others.remove(self)
        if not others:
            del _watchers[self.layer]
            if type(self.layer) in _WATCHED:  # a lazy layer may have changed its class meanwhile
                self.layer.__class__ = type(self.layer).__bases__[0]


def _with_forward(cls: type[nn.Module]) -> list[type]:
    return [base for base in cls.__mro__ if "forward" in vars(base) and base is not nn.Module and base not in _WATCHED]


def _is_known(cls: type) -> bool:
    return cls.__module__.startswith(_KNOWN)


@functools.cache
def _watched(cls: type[nn.Module]) -> type[nn.Module]:
    """A class like cls, in which super().forward is watched."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        watchers = list(_watchers.get(self, ()))
        for watcher in watchers:
            if watcher.before is not None:
                watcher.before(self, args)
        output = super(between, self).forward(*args, **kwargs)
        for watcher in watchers:
            watcher.after(self, args, kwargs, output)
        return output

    base = next(filter(_is_known, _with_forward(cls)))
    between: Any = types.new_class(
        f"Watched{base.__name__}", (base,), exec_body=lambda body: body.update(forward=forward)
    )
    looks = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    watched = types.new_class(cls.__name__, (cls, between), exec_body=lambda body: body.update(looks))
    _WATCHED.update((between, watched))
    return watched
