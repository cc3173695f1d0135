"""The plot of a run: ratios beside their targets, or over the sizes of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from prproduct.bench.cases import SWEEPS
from prproduct.bench.results import Report
from prproduct.bench.timing import Verdict
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable_file, replacing

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = {Verdict.MET: "#0072b2", Verdict.OPEN: "#0072b2", Verdict.MISSED: "#d55e00", Verdict.NOISY: "#e69f00"}
_GREY, _BLACK = "#888888", "#000000"
_TICKS = (0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)


def check_path(path: Path) -> None:
    """Raise InputError for a path that cannot be written or whose format is unknown, before anything is measured."""
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise InputError(f"--plot {path}: unknown kind of picture; end it in .svg, .png or .pdf")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}; make it first")
    check_writable_file(path)


def save(report: Report, path: Path) -> None:
    """Draw the run and replace the file atomically."""
    figure = _sweep(report) if report.settings.sweep else _bars(report)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".").lower(), dpi=150)


def _bars(report: Report) -> Figure:
    """Return a figure with a row for each case: our ratio with its spread, its target, and the literal formula's."""
    rows = report.rows
    figure = Figure(figsize=(8, 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for place, row in enumerate(rows):
        times = row.times
        axes.errorbar(times.ratio, place, xerr=times.spread, fmt="o", color=_COLOURS[row.verdict], markersize=5)
    literal = [(r.times.reference_ratio, place) for place, r in enumerate(rows) if r.times.reference_ratio is not None]
    if literal:
        axes.plot(*zip(*literal, strict=True), "D", color=_GREY, markersize=4, markerfacecolor="none")
    targets = [(row.target, place) for place, row in enumerate(rows) if row.target is not None]
    if targets:
        axes.plot(*zip(*targets, strict=True), "|", color=_BLACK, markersize=11, markeredgewidth=1.6)
    axes.set_yticks(places, [row.name for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _scale(axes, "x", report)
    _legend(figure, axes, bool(literal), bool(targets), {row.verdict for row in rows})
    return figure


def _sweep(report: Report) -> Figure:
    """Return a figure of our ratio over the size that was varied."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    sizes = [row.size or 0 for row in report.rows]
    ratios, spreads = [row.times.ratio for row in report.rows], [row.times.spread for row in report.rows]
    axes.errorbar(sizes, ratios, yerr=spreads, fmt="o-", color=_COLOURS[Verdict.OPEN], markersize=5, label="ours")
    noisy = [(row.size, row.times.ratio) for row in report.rows if row.verdict is Verdict.NOISY]
    if noisy:
        axes.plot(
            *zip(*noisy, strict=True), "o", color=_COLOURS[Verdict.NOISY], markersize=5, zorder=3, label="too noisy"
        )
    literal = [(row.size, row.times.reference_ratio) for row in report.rows if row.times.reference_ratio is not None]
    if literal:
        axes.plot(*zip(*literal, strict=True), "D:", color=_GREY, markerfacecolor="none", label="literal formula")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
    axes.set_xlabel(SWEEPS[report.settings.sweep or ""][0], fontsize=9)
    _scale(axes, "y", report)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _scale(axes: Axes, name: Literal["x", "y"], report: Report) -> None:
    """Make an axis that of the ratios: logarithmic, with a line at 1, the native module."""
    if name == "x":
        axes.set_xscale("log")
        axes.axvline(1.0, color=_BLACK, linewidth=0.8)
    else:
        axes.set_yscale("log")
        axes.axhline(1.0, color=_BLACK, linewidth=0.8)
    ratios = [ratio for row in report.rows for ratio in (row.times.ratio, row.times.reference_ratio) if ratio]
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_label_text("time, native = 1", fontsize=9)
    axis.set_ticks([tick for tick in _TICKS if 0.8 * min(*ratios, 1.0) <= tick <= 1.3 * max(*ratios, 1.2)])
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
    axes.grid(axis=name, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(str(report.settings), fontsize=9, loc="left")


def _legend(figure: Figure, axes: Axes, literal: bool, targets: bool, verdicts: set[Verdict]) -> None:
    words = {Verdict.MET: "ours", Verdict.OPEN: "ours", Verdict.MISSED: "ours, over target", Verdict.NOISY: "too noisy"}
    for text, verdict in {words[v]: v for v in words if v in verdicts}.items():
        axes.plot([], [], "o", color=_COLOURS[verdict], label=text)
    if targets:
        axes.plot([], [], "|", color=_BLACK, markersize=11, markeredgewidth=1.6, label="target")
    if literal:
        axes.plot([], [], "D", color=_GREY, markersize=4, markerfacecolor="none", label="literal formula")
    figure.legend(loc="outside upper right", ncols=5, frameon=False, fontsize=8)
