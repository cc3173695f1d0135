"""What a product does to one batch: are outputs the same, how much longer do gradients get, and what does it cost."""

from __future__ import annotations

import copy
import dataclasses
import random
import statistics
import sys
import time
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from prproduct.conversion.convert import OWN, convert, require_module, revert
from prproduct.conversion.report import own_parameters, report, table
from prproduct.nn.layer import ProductLayer

_TURNS = 5
_SECONDS = 10.0  # no longer than about this for the comparison of times


@dataclass(frozen=True)
class GradientRow:
    """The norm of one module's gradient under the inner product and under its products."""

    name: str
    type: str
    product: str | None
    native: float
    converted: float

    @property
    def ratio(self) -> float:
        """How many times longer the gradient got; NaN where there was none."""
        return self.converted / self.native if self.native else float("nan")


@dataclass(frozen=True)
class Check:
    """What `check` found; `str` is the table."""

    rows: tuple[GradientRow, ...]
    total: GradientRow
    outputs: int
    largest_difference: float
    native_seconds: float
    converted_seconds: float
    never_called: tuple[str, ...]

    @property
    def outputs_equal(self) -> bool:
        """Whether every output is the native model's, bit for bit."""
        return self.largest_difference == 0.0

    @property
    def time_ratio(self) -> float:
        """Forward and backward beside the native model's, in eager mode, on this machine."""
        return self.converted_seconds / self.native_seconds

    def __str__(self) -> str:
        headings = ("name", "type", "product", "gradient, p", "gradient", "ratio")
        lines = [
            (row.name or "(the model)", row.type, row.product or "-", *_numbers(row))
            for row in (*self.rows, self.total)
        ]
        milliseconds = f"{1e3 * self.converted_seconds:.1f} ms instead of {1e3 * self.native_seconds:.1f} ms"
        parts = [
            table(headings, lines, numbers=3),
            f"outputs: {self._sameness()}",
            f"forward and backward take {self.time_ratio:.2f} times as long, {milliseconds}, in eager mode",
        ]
        if self.never_called:
            parts.append(f"converted but never called, so without effect on this batch: {', '.join(self.never_called)}")
        return "\n".join(parts)

    __repr__ = __str__

    def _sameness(self) -> str:
        if self.outputs_equal:
            return f"the same, bit for bit (tensors: {self.outputs})"
        return f"they differ by up to {self.largest_difference:.1e} of the largest value (tensors: {self.outputs})"


def _numbers(row: GradientRow) -> tuple[str, str, str]:
    return f"{row.native:.3g}", f"{row.converted:.3g}", f"{row.ratio:.2f}"


def check(module: nn.Module, *batch: Any, **keywords: Any) -> Check:
    """Run a model on a batch natively and under its products, and compare outputs, gradients and time.

    A model that is not converted is tried under `pr`. Arguments go to the model. The loss is the output's `.loss` if it
    has one, else a fixed random projection of all floating-point outputs: look at ratios, not at norms. Every run has
    the same model, random numbers and batch to start from, and these are left as they were: parameters, their
    gradients, buffers, attributes, classes and products.

    >>> import torch, prproduct as pr
    >>> model = pr.convert(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)))
    >>> result = pr.check(model, torch.randn(32, 8))
    >>> result.outputs_equal, [row.name for row in result.rows], all(row.ratio > 1 for row in result.rows)
    (True, ['0', '2'], True)
    """
    require_module(module, "check")
    if any(is_lazy(t) for t in chain(module.parameters(), module.buffers())):
        raise ValueError("a lazy layer does not know its size yet: run the model on a batch once, then check it")
    if torch.is_inference_mode_enabled():
        raise ValueError("check needs gradients, and torch.inference_mode rules them out: call it outside")
    with _own_classes(module), torch.compiler.set_stance("force_eager"), torch.enable_grad():
        if not any(isinstance(m, ProductLayer) for m in module.modules()):
            convert(module)
        products = {row.name: row.product for row in report(module).rows}
        converted = _classes(module)
        with _never_called(module) as silent:
            ours = _Run.of(module, batch, keywords)
        native_classes = _classes(revert(module))
        native = _Run.of(module, batch, keywords)
        seconds = []
        for _ in range(max(1, min(_TURNS, int(_SECONDS / (ours.seconds + native.seconds))))):
            times = []
            for classes in (native_classes, converted):
                _set_classes(classes)
                times.append(_Run.of(module, batch, keywords).seconds)
            seconds.append(times)
    native_seconds, converted_seconds = (statistics.median(column) for column in zip(*seconds, strict=True))
    rows = tuple(
        GradientRow(name, type_name, products[name], _norm(native, parameters), _norm(ours, parameters))
        for name, type_name, parameters in own_parameters(module)
        if name in products and any(p in ours.gradients for p in parameters)
    )
    everything: list[Tensor] = list(module.parameters())
    total = GradientRow("all together", "", "", _norm(native, everything), _norm(ours, everything))
    return Check(
        rows,
        total,
        len(ours.outputs),
        _largest_difference(ours.outputs, native.outputs),
        native_seconds,
        converted_seconds,
        tuple(sorted(silent)),
    )


@dataclass(frozen=True)
class _Run:
    """One forward and backward: the outputs, the gradient of each parameter that has one, and the time."""

    outputs: list[Tensor]
    gradients: dict[Tensor, Tensor]
    seconds: float

    @classmethod
    def of(cls, module: nn.Module, batch: tuple[Any, ...], keywords: dict[str, Any]) -> _Run:
        parameters = [p for p in module.parameters() if p.requires_grad]
        with _left_as_it_was(module):
            batch, keywords = _fresh((batch, keywords), {})
            start = _now()
            output = module(*batch, **keywords)
            outputs = list(_tensors(output))
            loss = _loss(output, outputs)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else ()
            seconds = _now() - start
            kept = [t.detach().clone() for t in outputs]  # one may be a buffer, which goes back to its value
        pairs = zip(parameters, gradients, strict=True)
        return cls(kept, {p: g for p, g in pairs if g is not None}, seconds)


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in an output, in order; objects are met once, so that a cycle ends."""
    met: dict[int, Any] = {}
    waiting = [output]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif met.setdefault(id(value), waiting) is waiting:
            met[id(value)] = value  # kept, lest another gets its id
            waiting += reversed(list(_parts(value)))


def _parts(value: Any) -> Iterable[Any]:
    """What a container, a dataclass or a plain object such as a distribution holds."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if callable(value) or isinstance(value, (Enum, types.ModuleType)):
        return ()  # classes, functions, modules: not data
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return vars(value).values() if hasattr(value, "__dict__") else ()


def _fresh(value: Any, copies: dict[int, Any]) -> Any:
    """A copy for one run, which may write into it; what cannot be copied is shared."""
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return copies[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_fresh(part, copies) for part in value)
    if type(value) is dict:
        return {key: _fresh(part, copies) for key, part in value.items()}
    if isinstance(value, nn.Module):
        return value
    for tensor in _tensors(value):
        _fresh(tensor, copies)
    try:
        return copy.deepcopy(value, copies)
    except Exception:
        return value


def _loss(output: Any, outputs: list[Tensor]) -> Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss.mean()
    parts = [t for t in outputs if t.requires_grad and t.is_floating_point()]
    if not parts:
        raise ValueError("the model's output holds no tensor that depends on a parameter which requires a gradient")
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t) for t in parts]
    return torch.stack([(t * d).float().mean() for t, d in zip(parts, directions, strict=True)]).sum()


def _norm(run: _Run, parameters: list[Tensor]) -> float:
    squares = [run.gradients[p].double().square().sum().item() for p in parameters if p in run.gradients]
    return sum(squares) ** 0.5


def _largest_difference(got: list[Tensor], expected: list[Tensor]) -> float:
    if len(got) != len(expected):
        return float("inf")
    return max((_difference(a, b) for a, b in zip(got, expected, strict=True)), default=0.0)


def _difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest value; 0 means equal bit for bit, NaN equals NaN alone."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    apart = ~_same(got, expected)
    if not apart.any():
        return 0.0
    wide = torch.complex128 if got.is_complex() else torch.float64
    got, expected = got.to(wide), expected.to(wide)
    largest = expected[expected.isfinite()].abs().amax() if expected.isfinite().any() else expected.new_zeros(()).abs()
    share = ((got - expected)[apart].abs().max() / largest.clamp_min(1e-300)).item()
    return float("inf") if share != share else share


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


Classes = list[tuple[nn.Module, type[nn.Module], dict[str, Any]]]


def _classes(module: nn.Module) -> Classes:
    return [(m, type(m), {key: vars(m)[key] for key in vars(m).keys() & set(OWN)}) for m in module.modules()]


def _set_classes(classes: Classes) -> None:
    for m, cls, own in classes:
        m.__class__ = cls
        for name in OWN:
            vars(m).pop(name, None)
        vars(m).update(own)


@contextmanager
def _own_classes(module: nn.Module) -> Iterator[None]:
    """Afterwards every module has the class and the product that it had before."""
    classes = _classes(module)
    try:
        yield
    finally:
        _set_classes(classes)


@contextmanager
def _never_called(module: nn.Module) -> Iterator[set[str]]:
    """The names of the layers under a product whose forward is not called meanwhile."""
    layers = {name: m for name, m in module.named_modules() if isinstance(m, ProductLayer)}
    silent = set(layers)
    with ExitStack() as stack:
        for name, layer in layers.items():
            handle = layer.register_forward_pre_hook(lambda *_, name=name: silent.discard(name))
            stack.callback(handle.remove)
        yield silent


_CONTAINERS = (dict, OrderedDict, defaultdict, set, list, deque)


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Afterwards attributes, parameters, buffers and random states are what they were before."""
    attributes = [(m, dict(vars(m))) for m in module.modules()]
    held = [value for _, before in attributes for value in before.values()]
    containers = [(value, copy.copy(value)) for value in held if type(value) in _CONTAINERS]
    loose = (value for value in held if isinstance(value, Tensor))
    tensors = {id(t): t for t in chain(module.parameters(), module.buffers(), loose)}.values()
    values = [(t, t.detach(), t.detach().clone()) for t in tensors]
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with ExitStack() as stack:
        accelerators = {t.device for t in module.parameters() if t.device.type not in ("cpu", "meta")}
        for kind in {device.type for device in accelerators} or {"cuda"}:
            ids = [device.index for device in accelerators if device.type == kind]
            stack.enter_context(torch.random.fork_rng(ids, device_type=kind))
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
            for m, before in attributes:
                vars(m).clear()
                vars(m).update(before)
            for container, content in containers:
                container.clear()
                (container.extend if isinstance(container, (list, deque)) else container.update)(content)
            for tensor, memory, value in values:
                _give_back(tensor, memory, value)


def _give_back(tensor: Tensor, memory: Tensor, value: Tensor) -> None:
    """The tensor's memory and value: written only where another was put, so that an expanded buffer is not touched."""
    if type(tensor) in (Tensor, nn.Parameter) and tensor.data_ptr() != memory.data_ptr():
        tensor.data = memory
    if not memory.is_meta and not _same(memory, value).all():
        for axis, stride in enumerate(memory.stride()):
            if stride == 0:
                memory, value = memory.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
        memory.copy_(value)
