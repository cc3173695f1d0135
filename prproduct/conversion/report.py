"""`report`: which layers of a model are under which product, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from prproduct.conversion.convert import holding_attentions, require_module, verdicts_of
from prproduct.conversion.obstacles import is_quantized
from prproduct.nn.layer import ProductLayer
from prproduct.ops import kernels


@dataclass(frozen=True)
class Row:
    """One module with weights; if `product` is None it is not converted, and `why` is the reason."""

    name: str
    type: str
    product: str | None
    why: str
    weights: int

    @property
    def state(self) -> str:
        """The text of the column `state`."""
        return f"left: {self.why}" if self.product is None else ", ".join(filter(None, (self.product, self.why)))


@dataclass(frozen=True)
class Report:
    """A row for every module with weights; `str` is a table."""

    rows: tuple[Row, ...]
    gradients_by: dict[str, str] = field(default_factory=dict)  # what runs in eager mode, by device

    @property
    def converted(self) -> tuple[Row, ...]:
        """The rows of modules under a product."""
        return tuple(row for row in self.rows if row.product is not None)

    @property
    def left(self) -> tuple[Row, ...]:
        """The rows of modules that are not converted."""
        return tuple(row for row in self.rows if row.product is None)

    def __str__(self) -> str:
        lines = [(row.name or "(the model)", row.type, row.state, f"{row.weights:,}") for row in self.rows]
        total, done = (sum(row.weights for row in rows) for rows in (self.rows, self.converted))
        share = f" ({done / total:.1%})" if total else ""
        summary = (
            f"{len(self.converted)} of {len(self.rows)} modules and {done:,} of {total:,} weights{share} converted"
        )
        others = {device: how for device, how in self.gradients_by.items() if (device, how) != ("cpu", "C++ kernels")}
        summary += "".join(f"\neager backward on {device} by {how}" for device, how in others.items())
        return f"{table(('name', 'type', 'state', 'weights'), lines, numbers=1)}\n{summary}"

    __repr__ = __str__


def report(module: nn.Module) -> Report:
    """Return a row for every module with weights: its product, or why it is not converted.

    >>> import torch, prproduct as pr
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 2))
    >>> print(pr.report(pr.convert(model)))
    name  type       state                                               weights
    0     Embedding  left: embedding: looks rows up, multiplies nothing       80
    1     Linear     pr                                                       18
    1 of 2 modules and 18 of 98 weights (18.4%) converted
    """
    require_module(module, "report")
    rows = tuple(_rows(module))
    devices = {str(p.device) for p in module.parameters() if p.device.type != "meta"}
    converted = any(row.product not in (None, "p") for row in rows)
    return Report(rows, {device: kernels.implementation(device) for device in sorted(devices) if converted})


def own_parameters(module: nn.Module) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Yield name, type and parameters of every module with parameters, including those of its parametrizations."""
    inner = {id(m) for layer in module.modules() for m in _parametrizations(layer)}
    for name, layer in module.named_modules():
        holders = (layer, *_parametrizations(layer))
        parameters: list[Tensor] = [p for holder in holders for p in holder.parameters(recurse=False)]
        if parameters and id(layer) not in inner:
            yield name, type(layer).__name__, parameters


def _rows(module: nn.Module) -> Iterator[Row]:
    attentions = holding_attentions(module)
    owned = {name: (kind, parameters) for name, kind, parameters in own_parameters(module)}
    verdicts = verdicts_of(module)
    counted: dict[int, str] = {}  # by which module a weight is counted: one under a product, if there is one
    holders = {name: attentions.get(id(layer), layer) for name, (layer, _) in verdicts.items()}
    for name in sorted(owned, key=lambda name: not isinstance(holders[name], ProductLayer)):
        for parameter in owned[name][1]:
            counted.setdefault(id(parameter), name)
    for name, (layer, target) in verdicts.items():
        if name not in owned and not is_quantized(layer):
            continue
        kind, parameters = owned.get(name, (type(layer).__name__, []))
        shared = {counted[id(p)] for p in parameters} - {name}
        weights = sum(p.numel() for p in parameters if counted[id(p)] == name and not is_lazy(p))
        holder = holders[name]
        notes = [f"shares weights with {other}" for other in sorted(shared)]
        if isinstance(holder, ProductLayer):
            notes += ["with its attention"] if holder is not layer else []
            yield Row(name, kind, str(holder.product), ", ".join(notes), weights)
        else:
            why = target if isinstance(target, str) else "could be converted, and was not chosen"
            yield Row(name, kind, None, ", ".join([why, *notes]), weights)


def _parametrizations(layer: nn.Module) -> Iterable[nn.Module]:
    """Return the modules by which torch.nn.utils.parametrize computes the layer's weights."""
    return layer.get_submodule("parametrizations").modules() if parametrize.is_parametrized(layer) else ()


def table(headings: Sequence[str], lines: Iterable[Sequence[str]], numbers: int) -> str:
    """Return aligned columns, the last `numbers` of them right-aligned."""
    every = [headings, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(headings))]
    left = len(headings) - numbers

    def aligned(line: Sequence[str]) -> str:
        cells = [t.ljust(w) if i < left else t.rjust(w) for i, (t, w) in enumerate(zip(line, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join(aligned(line) for line in every)
