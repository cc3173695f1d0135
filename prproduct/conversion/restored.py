"""Running a model without lasting effects: its attributes, parameters, buffers, class and random states are restored.

The model itself runs, not a deep copy: some models cannot be copied, a copy would double the memory of all others, and
hooks and tied objects outside of the model would still refer to the original.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from prproduct.conversion.convert import classes_of, set_classes


@contextmanager
def classes_restored(module: nn.Module) -> Iterator[None]:
    """Restore the class and the product of every module at the end of the context."""
    classes = classes_of(module)
    try:
        yield
    finally:
        set_classes(classes)


_CONTAINERS = (dict, OrderedDict, defaultdict, set, list, deque)


@contextmanager
def state_restored(module: nn.Module) -> Iterator[None]:
    """Restore attributes, parameters, buffers and random states at the end of the context."""
    attributes = [(m, dict(vars(m))) for m in module.modules()]
    held = list(_with_contents([before for _, before in attributes]))
    containers = [(value, copy.copy(value)) for value in held if type(value) in _CONTAINERS]
    loose = (value for value in held if isinstance(value, Tensor))
    tensors = {id(t): t for t in chain(module.parameters(), module.buffers(), loose)}.values()
    values = [(t, t.detach(), t.detach().clone()) for t in tensors]
    gradients = [(p, p.grad) for p in module.parameters()]
    generators = [(value, value.get_state()) for value in held if isinstance(value, torch.Generator)]
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with ExitStack() as stack:
        accelerators = {t.device for t in module.parameters() if t.device.type not in ("cpu", "meta")}
        for kind in {device.type for device in accelerators} or {"cuda"}:
            ids = [device.index for device in accelerators if device.type == kind]
            stack.enter_context(torch.random.fork_rng(ids, device_type=kind))
        try:
            for p, _ in gradients:
                p.grad = None  # a model that calls backward itself would add to it
            yield
        finally:
            for p, gradient in gradients:
                p.grad = gradient
            for generator, state in generators:
                generator.set_state(state)
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
            for m, before in attributes:
                for name in vars(m).keys() - before.keys():  # attributes that forward added
                    del vars(m)[name]
                vars(m).update(before)  # not setattr, which modules override
            for container, content in containers:
                container.clear()
                (container.extend if isinstance(container, (list, deque)) else container.update)(content)
            for tensor, memory, value in values:
                _restore(tensor, memory, value)


def _with_contents(values: Iterable[Any]) -> Iterable[Any]:
    """Return the values and what their containers hold, at any depth; every object once."""
    found: dict[int, Any] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) not in found:
            found[id(value)] = value
            if type(value) in (*_CONTAINERS, tuple):
                waiting += value.values() if isinstance(value, dict) else value
    return found.values()


def _restore(tensor: Tensor, memory: Tensor, value: Tensor) -> None:
    """Restore a tensor's storage and values; written only if they differ, so that expanded buffers stay untouched."""
    if type(tensor) in (Tensor, nn.Parameter) and tensor.data_ptr() != memory.data_ptr():
        tensor.data = memory
    if not memory.is_meta and not same(memory, value).all():
        for axis, stride in enumerate(memory.stride()):
            if stride == 0:
                memory, value = memory.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
        memory.copy_(value)


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in an output, in order; every object is visited once, so that cycles end."""
    visited: dict[int, Any] = {}
    waiting = [output]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif id(value) not in visited:
            visited[id(value)] = value  # the reference keeps its id from being reused
            waiting += reversed(list(_parts(value)))


def _parts(value: Any) -> Iterable[Any]:
    """Return the values inside a container, a dataclass, or an object with attributes such as a distribution."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if callable(value) or isinstance(value, (Enum, types.ModuleType)):
        return ()  # classes, functions, modules: not data
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return vars(value).values() if hasattr(value, "__dict__") else ()


def copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy for one run, which may write into it; what cannot be copied is returned itself.

    `copies` is {id: copy} of what is copied already: a tensor that occurs twice has one copy.
    """
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return copies[id(value)]
    if type(value) in (list, tuple):
        return type(value)(copied(part, copies) for part in value)
    if type(value) is dict:
        return {key: copied(part, copies) for key, part in value.items()}
    if isinstance(value, nn.Module):
        return value
    for tensor in tensors_in(value):
        copied(tensor, copies)
    try:
        return copy.deepcopy(value, copies)
    except Exception:
        return value


def same(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors are equal; NaN equals NaN."""
    return (a == b) | (a.isnan() & b.isnan())
