"""Draw the figures of README.md from the records beside this file: `python docs/results/draw.py`."""

from __future__ import annotations

from pathlib import Path

import studies
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from prproduct.lab.report.statistics import paired_difference

HERE = Path(__file__).parent
P_COLOUR, PR_COLOUR = "#0072b2", "#d55e00"


def draw_gains() -> Figure:
    """Draw PR's gain over P in each study, in % of P's score, with its 95 % interval, and the paper's."""
    rows = [(study, gain) for study in studies.STUDIES if (gain := studies.Gain.of(study))]
    figure, axes = pyplot.subplots(figsize=(7.2, 1.0 + 0.36 * len(rows)), layout="constrained")
    axes.axvline(0, color="black", linewidth=0.8, zorder=0)
    marks: dict[str, tuple[list[float], list[int]]] = {}
    for place, (study, gain) in enumerate(rows):
        low, high = (100 * end / gain.baseline for end in gain.interval)
        axes.plot((low, high), (place, place), color=PR_COLOUR, linewidth=2, zorder=1)
        found = [gain.sign * gain.difference.mean, *(gain.of_the_paper(study) or ())]
        labels = ("here, with its 95 % interval", "the paper's, in points", "the paper's, as a share")
        for label, size in zip(labels, found, strict=False):
            across, down = marks.setdefault(label, ([], []))
            across.append(100 * size / gain.baseline)
            down.append(place)
    shapes = (("D", PR_COLOUR, PR_COLOUR), ("s", "none", "black"), ("o", "none", "black"))
    for (label, (across, down)), (shape, face, edge) in zip(marks.items(), shapes, strict=False):
        axes.scatter(across, down, marker=shape, facecolors=face, edgecolors=edge, s=44, zorder=2, label=label)
    names = [f"{study.name}: {study.measure.removesuffix(', %')}, n = {gain.difference.n}" for study, gain in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    figure.supxlabel("PR is worse   ←   improvement under PR, in % of P's mean score   →   PR is better", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=3, frameon=False)
    return figure


def draw_angles() -> Figure:
    """Draw the change of min |sin θ| under PR in every layer with its 95 % interval, for studies of 3 pairs or more."""
    found = [each for study in studies.STUDIES if (each := studies.angles(study)) and len(each.improvements) > 2]
    rows = [len(each.means) for each in found]
    figure, panels = pyplot.subplots(
        len(found),
        1,
        figsize=(7.2, 0.17 * sum(rows) + 0.55 * len(rows)),
        height_ratios=rows,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, each in zip(panels[:, 0], found, strict=True):
        panel.axvline(0, color="black", linewidth=0.8, zorder=0)
        for row, values in enumerate(each.differences.values()):
            change = paired_difference(values, dict.fromkeys(values, 0.0))
            colour = PR_COLOUR if row == len(each.means) - 1 else P_COLOUR  # the output layer is the last
            assert change is not None, "a study has pairs"
            if change.low is not None:
                panel.plot((change.low, change.high), (row, row), color=colour, linewidth=1.4, zorder=1)
            panel.scatter(change.mean, row, color=colour, s=14, zorder=2)
        labels = [f"{layer}  {p:.2f}" for layer, (p, _) in each.means.items()]
        panel.set_yticks(range(len(labels)), labels, fontsize=6.5)
        panel.invert_yaxis()
        panel.tick_params(axis="x", labelsize=8)
        panel.set_title(f"{each.study.name}, n = {len(each.improvements)}", fontsize=9, loc="left")
        panel.grid(axis="x", alpha=0.3)
    panels[0, 0].set_xlim(-0.05, 0.05)  # some intervals of few pairs go beyond
    output = Line2D([], [], color=PR_COLOUR, marker="o", markersize=4, linewidth=1.4)
    figure.legend([output], ["output layer"], fontsize=8, loc="outside upper right", frameon=False)
    figure.supxlabel(
        "min |sin θ| under PR minus under P, with its 95 % interval; beside each name, P's value", fontsize=8
    )
    return figure


def main() -> None:
    """Draw both figures."""
    pyplot.rcParams["svg.hashsalt"] = "the same ids in every drawing"
    for name, figure in {"gains.svg": draw_gains(), "angles.svg": draw_angles()}.items():
        figure.savefig(HERE / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
