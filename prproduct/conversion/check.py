"""What a product does to one batch: are outputs the same, how much longer do gradients get, and what does it cost."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from prproduct.conversion.convert import convert, revert
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
    has one, else a fixed random projection of all floating-point outputs: look at ratios, not at norms. The model is
    left as it was: parameters, their gradients, buffers, random numbers, classes and products.

    >>> import torch, prproduct as pr
    >>> model = pr.convert(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)))
    >>> result = pr.check(model, torch.randn(32, 8))
    >>> result.outputs_equal, [row.name for row in result.rows], all(row.ratio > 1 for row in result.rows)
    (True, ['0', '2'], True)
    """
    if any(is_lazy(t) for t in module.parameters()):
        raise ValueError("a lazy layer does not know its size yet: run the model on a batch once, then check it")
    with _left_as_it_was(module), torch.compiler.set_stance("force_eager"), torch.enable_grad():
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
        max((_difference(a, b) for a, b in zip(ours.outputs, native.outputs, strict=True)), default=0.0),
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
            start = _now()
            output = module(*batch, **keywords)
            outputs = list(_tensors(output))
            loss = _loss(output, outputs)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else ()
            seconds = _now() - start
        pairs = zip(parameters, gradients, strict=True)
        return cls([t.detach() for t in outputs], {p: g for p, g in pairs if g is not None}, seconds)


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
    elif hasattr(output, "__dict__"):
        yield from _tensors(vars(output))


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


def _difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest value; 0 means equal bit for bit."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if torch.equal(got, expected) or torch.equal(got.nan_to_num(), expected.nan_to_num()):
        return 0.0
    got, expected = got.double(), expected.double()
    return ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()


Classes = list[tuple[nn.Module, type[nn.Module], Any]]


def _classes(module: nn.Module) -> Classes:
    return [(m, type(m), vars(m).get("product")) for m in module.modules()]


def _set_classes(classes: Classes) -> None:
    for m, cls, product in classes:
        m.__class__ = cls
        vars(m).pop("product", None)
        if product is not None:
            vars(m)["product"] = product


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


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Afterwards classes, attributes, buffers and random states are what they were before."""
    classes = _classes(module)
    attributes = [(m, dict(vars(m)), dict(m._buffers)) for m in module.modules()]
    values = [(b, b.detach().clone()) for b in module.buffers()]
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
            for m, before, buffers in attributes:
                vars(m).clear()
                vars(m).update(before)
                m._buffers.clear()
                m._buffers.update(buffers)
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
            _set_classes(classes)
