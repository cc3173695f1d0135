"""How exact the gradient of `pr` is, from orthogonal to parallel vectors, and what the floor on |sin θ| buys.

    python benchmarks/numerics.py [--seed 0] [--markdown] [--plot docs/figures/numerics.svg]

Random pairs (w, x) are rounded to a dtype and run through the library. The truth comes from the rounded vectors, in
exact integers: ∂PR/∂w = P_x + ‖x‖·R_x/‖R_x‖ (the paper's Equation 11). ∂PR/∂x is measured likewise and counted with the
rest. All errors are those of the direction part, ‖direction part − exact‖/‖x‖: the length part is the inner product's.
"""

from __future__ import annotations

import argparse
import itertools
import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from torch import Tensor, dtype
from torch.nn.functional import normalize

from prproduct import functional
from prproduct.ops import kernels
from prproduct.ops.angles import floor_of_sin_square

DIMENSIONS = (1, 2, 3, 8, 64, 512, 4096)
MULTIPLES = (1.0, 4.0, 16.0, 32.0, 64.0, 128.0, 256.0)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CHOSEN = {kind: floor_of_sin_square(kind, "cpu", False) / torch.finfo(kind).eps for kind in DTYPES}
NAMES = {kind: str(kind).removeprefix("torch.") for kind in CHOSEN}
SIN_EDGES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1, 10**-0.5, 1.1)
ROWS_PER_GEMM = 64  # `linear` meets every row with every other, of which only the diagonal is wanted
TINY = 1e-300  # instead of dividing by 0
COLOURS = ("#0072b2", "#009e73", "#d55e00", "#cc79a7")  # Okabe and Ito: told apart by colour-blind readers

Longest = dict[tuple[dtype, float], dict[int, list[float]]]  # by dtype and multiple of eps; by dimension; for each op
Report = tuple[str, list[str], list[list[str]]]  # title, header, rows


@dataclass(frozen=True)
class Sample:
    """What was measured; one element a pair and gradient."""

    sin: Tensor
    error: Tensor
    length: Tensor  # ‖direction part‖/‖x‖
    unresolved: Tensor  # the direction part is nearer to the inner product's than to the exact one
    subnormal: Tensor  # p, or the typical element of the gradient, is a subnormal number

    def where(self, mask: Tensor) -> Sample:
        return Sample(*(column[mask] for column in vars(self).values()))


def floor(kind: dtype, multiple: float) -> float:
    """The |sin θ| up to which an angle counts as unresolved."""
    return math.sqrt(multiple * torch.finfo(kind).eps)


def draw(kind: dtype, shape: tuple[int, int], low: float, high: float, generator: torch.Generator) -> list[Tensor]:
    """Pairs w, x of shape (n, dimension), at log-uniform angles from 0 or π; every 16th is exactly parallel."""

    def log_uniform(low: float, high: float) -> Tensor:
        log = torch.empty(shape[0], 1, dtype=torch.float64).uniform_(math.log(low), math.log(high), generator=generator)
        return log.exp()

    angle, sign = log_uniform(low, min(high, math.pi / 2)), log_uniform(0.1, 10.0).log().sign()
    weight_norm, input_norm = log_uniform(1e-4, 1e4), log_uniform(1e-4, 1e4)
    first, second = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    first, second = normalize(first), normalize(reject(second, first), eps=TINY)
    w = (weight_norm * first).to(kind)
    x = (sign * input_norm * (angle.cos() * first + angle.sin() * second)).to(kind)
    x[::16] = (sign * (input_norm / weight_norm).log2().round().exp2() * w)[::16].to(kind)
    usable = w.any(-1) & x.any(-1) & (abs((w.double() * x.double()).sum(-1)) <= torch.finfo(kind).max)
    return [w[usable], x[usable]]


def reject(x: Tensor, w: Tensor) -> Tensor:
    """x − (w·x/‖w‖²)w in float64, twice: the second pass takes away what rounding left along w."""
    x, unit = x.double(), normalize(w.double())
    for _ in range(2):
        x = x - (unit * x).sum(-1, keepdim=True) * unit
    return x


def reject_exactly(x: Tensor, w: Tensor) -> Tensor:
    """x − (w·x/‖w‖²)w, rounded once: up to a power of two, floating-point vectors are integer vectors."""

    def integers(t: Tensor) -> tuple[Any, Any]:
        mantissa, exponent = np.frexp(t.double().numpy())
        lowest = exponent.min(-1, keepdims=True)
        digits = np.ldexp(mantissa, 53).astype(np.int64).astype(object)
        return digits << (exponent - lowest).astype(object), lowest - 53

    (x_int, x_exponent), (w_int, _) = integers(x), integers(w)
    w_square = (w_int * w_int).sum(-1, keepdims=True)
    rejection = x_int * w_square - (w_int * x_int).sum(-1, keepdims=True) * w_int
    return torch.from_numpy(np.ldexp((rejection / w_square).astype(np.float64), x_exponent))


def library_gradients(w: Tensor, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """∂PR/∂w and ∂PR/∂x of all pairs, by a grouped convolution and by GEMMs, which add up in other orders."""
    w, x = w.clone().requires_grad_(), x.clone().requires_grad_()
    output = functional.conv1d(x.reshape(1, -1, 1), w.unsqueeze(-1), groups=len(w))
    yield torch.autograd.grad(output, (w, x), torch.ones_like(output))
    parts = []
    for vectors in zip(w.split(ROWS_PER_GEMM), x.split(ROWS_PER_GEMM), strict=True):
        output = functional.linear(vectors[1], vectors[0])
        parts.append(torch.autograd.grad(output, vectors, torch.eye(len(output), dtype=output.dtype)))
    yield tuple(torch.cat(part) for part in zip(*parts, strict=True))


def direction_part(grad: Tensor, w: Tensor, x: Tensor) -> Tensor:
    """The half of the gradient for w that is orthogonal to w, in units of ‖x‖."""
    return reject(grad, w) / x.double().norm(dim=-1, keepdim=True)


def compare(grad: Tensor, w: Tensor, x: Tensor, rejection: Tensor) -> Sample:
    """The gradient for w against the truth, of which `rejection` is R_x."""
    norm, direction = x.double().norm(dim=-1), direction_part(grad, w, x)
    sin, length = rejection.norm(dim=-1) / norm, direction.norm(dim=-1)
    error = (direction - normalize(rejection, eps=TINY)).norm(dim=-1)
    p, typical = abs((w.double() * x.double()).sum(-1)), norm / math.sqrt(x.shape[-1])
    subnormal = torch.minimum(p, typical) < torch.finfo(grad.dtype).smallest_normal
    return Sample(sin, error, length, unresolved=(length < (1 + sin) / 2) & (sin < 0.5), subnormal=subnormal)


def measure_errors(kind: dtype, generator: torch.Generator) -> Sample:
    """All angles, at the library's floor."""
    samples = []
    for dimension in DIMENSIONS:
        w, x = draw(kind, (min(8192, 2**21 // dimension), dimension), 1e-8, math.pi / 2, generator)
        rejected_x, rejected_w = reject_exactly(x, w), reject_exactly(w, x)
        for grad_w, grad_x in library_gradients(w, x):
            samples += [compare(grad_w, w, x, rejected_x), compare(grad_x, x, w, rejected_w)]
    return Sample(*(torch.cat(column) for column in zip(*(vars(s).values() for s in samples), strict=True)))


def _multiple_of_eps(multiple: float, stored: dtype, *_: object) -> float:
    return multiple * torch.finfo(stored).eps


def measure_longest(kind: dtype, multiple: float, generator: torch.Generator) -> dict[int, list[float]]:
    """The longest direction part by dimension and op, among angles of one to four times a floor; NaN if one is NaN."""
    longest = {}
    for dimension in DIMENSIONS:
        shape = min(8192, 2**22 // dimension), dimension
        w, x = draw(kind, shape, floor(kind, multiple), floor(kind, multiple) * 4, generator)
        floors = partial(_multiple_of_eps, multiple)
        with patch.object(kernels, "floor_of_sin_square", floors):
            parts = [(direction_part(gw, w, x), direction_part(gx, x, w)) for gw, gx in library_gradients(w, x)]
        longest[dimension] = [torch.cat(part).norm(dim=-1).max().item() for part in parts]
    return longest


def errors(samples: dict[dtype, Sample]) -> Report:
    """A row for each dtype and range of s; ranges in which nothing is resolved share one."""
    rows = []
    for kind, sample in samples.items():
        normal = sample.where(~sample.subnormal)
        first = bisect(SIN_EDGES, normal.sin[~normal.unresolved].min().item()) - 1
        parts = {"0": normal.where(normal.sin == 0)}
        for low, high in itertools.pairwise((0.0, *SIN_EDGES[first:])):
            inside = (normal.sin > 0) & (normal.sin >= low) & (normal.sin < high)
            parts[f"{low:.0e} – {high:.0e}"] = normal.where(inside)
        parts["subnormal"] = sample.where(sample.subnormal)
        for label, part in parts.items():
            if count := len(part.sin):
                error = part.error[~part.unresolved]
                found = [f"{error.median():.0e}", f"{error.max():.0e}"] if len(error) else ["", ""]
                share = f"{100 * part.unresolved.double().mean():.1f} %"
                rows.append([NAMES[kind], label, f"{count}", share, *found, f"{part.length.max():.3f}"])
    header = ["dtype", "s", "gradients", "as `p`", "median", "largest", "longest"]
    return "Error of the direction part, where it is not as `p`", header, rows


def by_floor(longest: Longest) -> Report:
    """What each multiple of eps would give."""
    rows = []
    for multiple in MULTIPLES:
        lengths = [np.max(list(longest[kind, multiple].values())) for kind in CHOSEN]
        marks = [" ◂" if chosen == multiple else "" for chosen in CHOSEN.values()]
        rows.append([f"{multiple:.0f}", *(f"{length:.2f}{mark}" for length, mark in zip(lengths, marks, strict=True))])
    return "Longest direction part by floor (◂ the library's)", ["multiple of eps", *NAMES.values()], rows


def at_the_floors(samples: dict[dtype, Sample], longest: Longest) -> Report:
    """The library's floors, what must not happen, and where the direction part is longest."""
    limits = [f"√({multiple:.0f}·eps) = {floor(kind, multiple):.1e}" for kind, multiple in CHOSEN.items()]
    not_finite = [f"{(~sample.error.isfinite()).sum()} of {len(sample.error)}" for sample in samples.values()]
    rows = [["floor on s", *limits], ["NaN or Inf", *not_finite]]
    for dimension in DIMENSIONS:
        cells = (" / ".join(f"{value:.2f}" for value in longest[chosen][dimension]) for chosen in CHOSEN.items())
        rows.append([f"longest, dimension {dimension}", *cells])
    return "At the library's floors (longest: conv1d / linear)", ["", *NAMES.values()], rows


def show(title: str, header: list[str], rows: list[list[str]], as_markdown: bool) -> None:
    """A table on the terminal, or as Markdown."""
    if as_markdown:
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        print(f"\n**{title}**\n", *(f"| {' | '.join(line)} |" for line in lines), sep="\n")
        return
    table = Table(*(Column(heading, justify="right") for heading in header), title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def plot(samples: dict[dtype, Sample], path: Path) -> None:
    """The median and the largest error over s, all gradients together."""
    plt.rcParams.update({"svg.hashsalt": "prproduct", "font.size": 11, "axes.grid": True, "grid.alpha": 0.25})
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set(xlabel="s = |sin θ|", ylabel="‖direction part − exact‖ / ‖x‖", xlim=(1e-8, 1), ylim=(1e-16, 10))
    axes.set_title("line: median; shade: up to the largest; dotted: the floor, below which pr is as p", fontsize=10)
    for colour, (kind, sample) in zip(COLOURS, samples.items(), strict=True):
        curve = []
        for low, high in itertools.pairwise(np.logspace(-8, 0, 65)):
            error = sample.error[(sample.sin >= low) & (sample.sin < high) & ~sample.subnormal]
            if len(error) >= 20:
                curve.append((math.sqrt(low * high), error.median().item(), error.max().item()))
        sin, median, largest = zip(*curve, strict=True)
        axes.loglog(sin, median, color=colour, linewidth=2)
        axes.fill_between(sin, median, largest, color=colour, alpha=0.2, linewidth=0)
        axes.axvline(limit := floor(kind, CHOSEN[kind]), color=colour, linewidth=1, linestyle=":")
        axes.annotate(NAMES[kind], (limit, 8e-7), color=colour, rotation=90, ha="right", va="top")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, and show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true", help="write the tables as Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the error over |sin θ|")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    progress = Console(stderr=True)
    samples = {kind: measure_errors(kind, generator) for kind in track(CHOSEN, "Errors", console=progress)}
    cases = list(itertools.product(CHOSEN, MULTIPLES))
    longest = {case: measure_longest(*case, generator) for case in track(cases, "Floors", console=progress)}
    for report in (errors(samples), at_the_floors(samples, longest), by_floor(longest)):
        show(*report, arguments.markdown)
    if arguments.plot:
        plot(samples, arguments.plot)


if __name__ == "__main__":
    main()
