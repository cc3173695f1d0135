"""`check`: a batch under the inner product and under the model's products; outputs, gradients and time compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from prproduct.conversion.convert import classes_of, convert, require_module, revert_if_possible, set_classes
from prproduct.conversion.report import own_parameters, report, table
from prproduct.conversion.restored import classes_restored, copied, same, state_restored, tensors_in
from prproduct.nn.layer import ProductLayer
from prproduct.products import P

_TURNS = 5  # repetitions of the comparison of times
_SECONDS = 10.0  # their total time is about this at most


@dataclass(frozen=True)
class GradientRow:
    """The norm of a module's gradient under the inner product (`native`) and under its product (`converted`)."""

    name: str
    type: str
    product: str | None
    native: float
    converted: float

    @property
    def ratio(self) -> float:
        """converted / native; NaN if the native gradient is 0."""
        return self.converted / self.native if self.native else float("nan")


@dataclass(frozen=True)
class Check:
    """The result of `check`; `str` is a table."""

    rows: tuple[GradientRow, ...]
    total: GradientRow
    outputs: int
    largest_difference: float
    native_seconds: float
    converted_seconds: float
    never_called: tuple[str, ...]

    @property
    def outputs_equal(self) -> bool:
        """True if every output equals the native model's, bit for bit."""
        return self.largest_difference == 0.0

    @property
    def time_ratio(self) -> float:
        """Time of forward and backward divided by the native model's, in eager mode on this machine."""
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


def check(module: nn.Module, /, *batch: Any, **keywords: Any) -> Check:
    """Run a model on a batch natively and under its products, and compare outputs, gradients and time.

    A model that is not converted is checked under `pr`. The arguments are passed to the model. The loss is the output's
    `.loss` if it has one, else a fixed random projection of all floating-point outputs, so that only ratios of gradient
    norms are meaningful. Every run starts from the same model, random numbers and batch, and all are restored
    afterwards: parameters, gradients, buffers, attributes, classes and products.

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
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"check cannot restore {name}, a {layout} tensor: make it dense first")
    with classes_restored(module), torch.compiler.set_stance("force_eager"), torch.enable_grad():
        if not any(isinstance(m, ProductLayer) for m in module.modules()):
            convert(module)
        products = {row.name: row.product for row in report(module).rows}
        converted = classes_of(module)
        with _never_called(module) as uncalled:
            ours = _Run.of(module, batch, keywords)
        if not ours.gradients:
            raise ValueError("no parameter got a gradient: are all frozen, or behind fully_shard (check before it)?")
        for layer in revert_if_possible(module):  # of a user's subclass of this package's layers
            vars(layer)["product"] = P()
        native_classes = classes_of(module)
        native = _Run.of(module, batch, keywords)
        seconds = []
        for _ in range(max(1, min(_TURNS, int(_SECONDS / (ours.seconds + native.seconds))))):
            times = []
            for classes in (native_classes, converted):
                set_classes(classes)
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
        tuple(sorted(uncalled)),
    )


@dataclass(frozen=True)
class _Run:
    """One forward and backward: outputs, {parameter: gradient}, and seconds."""

    outputs: list[Tensor]
    gradients: dict[Tensor, Tensor]
    seconds: float

    @classmethod
    def of(cls, module: nn.Module, batch: tuple[Any, ...], keywords: dict[str, Any]) -> _Run:
        parameters = [p for p in module.parameters() if p.requires_grad]
        with state_restored(module):
            batch, keywords = copied((batch, keywords), {})
            start = _now()
            output = module(*batch, **keywords)
            outputs = list(tensors_in(output))
            if not all(t.layout is torch.strided and not t.is_nested for t in outputs):
                raise TypeError("check compares dense tensors, and the model's output holds a sparse or nested one")
            loss = _loss(output, outputs)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else ()
            seconds = _now() - start
            kept = [t.detach().clone() for t in outputs]  # an output may be a buffer, which is restored
        pairs = zip(parameters, gradients, strict=True)
        return cls(kept, {p: g for p, g in pairs if g is not None}, seconds)


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _loss(output: Any, outputs: list[Tensor]) -> Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss.mean()
    parts = [torch.view_as_real(t) if t.is_complex() else t for t in outputs if t.requires_grad]
    if not parts:
        raise ValueError("the model's output holds no tensor that depends on a parameter which requires a gradient")
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t) for t in parts]
    return torch.stack([(t * d).float().mean() for t, d in zip(parts, directions, strict=True)]).sum()


def _norm(run: _Run, parameters: list[Tensor]) -> float:
    squares = [run.gradients[p].abs().double().square().sum().item() for p in parameters if p in run.gradients]
    return sum(squares) ** 0.5


def _largest_difference(got: list[Tensor], expected: list[Tensor]) -> float:
    if len(got) != len(expected):
        return float("inf")
    return max((_difference(a, b) for a, b in zip(got, expected, strict=True)), default=0.0)


def _difference(got: Tensor, expected: Tensor) -> float:
    """Return max |got − expected| / max |expected|; 0 if equal bit for bit, where NaN equals NaN."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    apart = ~same(got, expected)
    if not apart.any():
        return 0.0
    wide = torch.complex128 if got.is_complex() else torch.float64
    got, expected = got.to(wide), expected.to(wide)
    largest = expected[expected.isfinite()].abs().amax() if expected.isfinite().any() else expected.new_zeros(()).abs()
    share = ((got - expected)[apart].abs().max() / largest.clamp_min(1e-300)).item()
    return float("inf") if share != share else share


@contextmanager
def _never_called(module: nn.Module) -> Iterator[set[str]]:
    """Yield the set of names of converted layers, from which each is removed when its forward is called."""
    layers = {name: m for name, m in module.named_modules() if isinstance(m, ProductLayer)}
    uncalled = set(layers)
    with ExitStack() as stack:
        for name, layer in layers.items():
            handle = layer.register_forward_pre_hook(lambda *_, name=name: uncalled.discard(name))
            stack.callback(handle.remove)
        yield uncalled
