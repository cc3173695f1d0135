"""The paper's figure: |sin θ| over training, one panel per layer, one line per run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prproduct.probe.records import GRADIENT_SCALARS, SCALARS, AngleRecord, read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "sample_min_sin": "min |sin θ| of a sample, mean over the batch",
    "min_sin": "min |sin θ|",
    "mean_sin": "mean |sin θ|",
    "max_sin": "max |sin θ|",
    "max_cos": "max |cos θ|",
    "gradient_norm": "norm of the gradient",
    "length_norm": "norm of the length gradient",
    "direction_norm": "norm of the direction gradient",
    "direction_share": "share of the direction gradient",
}
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")


def plot(
    runs: Mapping[str, Iterable[AngleRecord] | str | Path],
    statistic: str = "sample_min_sin",
    *,
    names: Iterable[str] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Plot a statistic over the training steps, one panel per layer and part, one line per run; needs matplotlib.

    `runs` maps a label to a probe's records, or to the JSONL file they were written to. `statistic` is a number of a
    record; the default is that of the paper's figures. `names` selects panels and their order; the figure is saved to
    `path`.

    >>> import torch, prproduct as pr
    >>> runs = {}
    >>> for product in ("p", "pr"):
    ...     net = pr.nn.Linear(8, 4, product=product)
    ...     with pr.AngleProbe(net) as probe:
    ...         for _ in range(3):
    ...             y = net(torch.randn(5, 8))
    ...     runs[product] = probe.records
    >>> figure = pr.probe.plot(runs)
    >>> [axes.get_title() for axes in figure.axes]
    ['Linear']
    """
    if statistic not in TITLES:
        raise ValueError(f"no statistic is named {statistic!r}; there are {', '.join((*SCALARS, *GRADIENT_SCALARS))}")
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pr.probe.plot needs matplotlib: pip install 'prproduct[plot]'") from None
    lines = {label: _lines(records, statistic) for label, records in runs.items()}
    known = list(dict.fromkeys(name for line in lines.values() for name in line))
    panels = known if names is None else list(names)
    missing = [name for name in panels if name not in known]
    if missing or not panels:
        raise ValueError(f"no run has values of {statistic} for {', '.join(missing) or 'any layer'}")
    columns = min(3, math.ceil(math.sqrt(len(panels))))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(1 + 3.2 * columns, 0.8 + 2.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    for place, axes in enumerate(grid):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        for colour, (label, line) in enumerate(lines.items()):
            steps, values = zip(*line.get(panels[place], [(math.nan, math.nan)]), strict=True)
            marker = "o" if len(steps) == 1 else None  # a line of one point is invisible
            axes.plot(steps, values, label=label, color=COLOURS[colour % len(COLOURS)], linewidth=1.4, marker=marker)
        axes.set_title(panels[place], fontsize=10)
        axes.tick_params(labelsize=8, labelbottom=place + columns >= len(panels))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    figure.supxlabel("training step", fontsize=10)
    figure.supylabel(TITLES[statistic], fontsize=10)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False, fontsize=10)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _lines(records: Iterable[AngleRecord] | str | Path, statistic: str) -> dict[str, list[tuple[int, float]]]:
    """Return {name: [(step, value), …]} of the steps in training mode, or in eval mode if there are no others."""
    records = read_jsonl(records) if isinstance(records, (str, Path)) else list(records)
    training = any(record.training for record in records)
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        value = getattr(record, statistic)
        if record.training == training and value is not None:
            lines.setdefault(record.name, []).append((record.step, value))
    return lines
