"""Draw the figures of README.md from the records beside this file: `python docs/results/draw.py`."""

from __future__ import annotations

import statistics
from pathlib import Path

import tables
from matplotlib import pyplot
from matplotlib.figure import Figure

from prproduct.captioning.paper import TABLE_2
from prproduct.classification.paper import TABLE_1
from prproduct.lab.report.statistics import paired_difference

HERE = Path(__file__).parent
P_COLOUR, PR_COLOUR, GREY = "#0072b2", "#d55e00", "#9aa2ac"


def relative(study: tables.Study) -> tuple[int, float, float, float] | None:
    """Return n, the mean gain of PR in % of P's mean score, and its 95 % interval; None for fewer than 3 pairs."""
    by_product = tables.scores(study)
    found = paired_difference(by_product.get("pr", {}), by_product.get("p", {}))
    if found is None or found.n < 3 or found.low is None or found.high is None:
        return None
    baseline = statistics.fmean(by_product["p"][seed] for seed in by_product["p"].keys() & by_product["pr"].keys())
    percent = (100 if study.larger_is_better else -100) / baseline
    low, high = sorted((percent * found.low, percent * found.high))
    return found.n, percent * found.mean, low, high


def gain_of_the_paper(study: tables.Study) -> float | None:
    """Return the paper's gain in % of its P: on its networks of this family, else on all of this data, and on COCO."""
    data, _, arch = study.folder.removeprefix("cifar/").partition("/")
    if study.score is tables.captioner:
        p, pr = (TABLE_2["rl"][product][6] for product in ("p", "pr"))  # CIDEr
        return 100 * (pr - p) / p
    if arch.startswith("vit"):
        return None
    rows = [row for row in TABLE_1 if row.data == data]
    if not rows:
        return None
    rows = [row for row in rows if row.arch.split("-")[0] == arch.split("-")[0]] or rows
    return 100 * statistics.fmean(row.p - row.pr for row in rows) / statistics.fmean(row.p for row in rows)


def draw_gains() -> Figure:
    """Draw PR's gain over P in each study, in % of P's score, with its 95 % interval, and the paper's."""
    rows = [(study, found) for study in tables.STUDIES if (found := relative(study))]
    figure, axes = pyplot.subplots(figsize=(7.2, 0.9 + 0.36 * len(rows)), layout="constrained")
    axes.axvline(0, color="black", linewidth=0.8, zorder=0)
    for place, (study, (_, mean, low, high)) in enumerate(rows):
        axes.plot((low, high), (place, place), color=PR_COLOUR, linewidth=2, zorder=1)
        label = "here, with the 95 % interval" if place == 0 else None
        axes.scatter(mean, place, color=PR_COLOUR, marker="D", s=30, zorder=2, label=label)
        paper = gain_of_the_paper(study)
        if paper is not None:
            label = "the paper, larger networks" if place == 0 else None
            axes.scatter(paper, place, facecolors="white", edgecolors="black", s=34, zorder=3, label=label)
    axes.set_yticks(range(len(rows)), [f"{study.name}, n = {n}" for study, (n, *_) in rows], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("PR is worse   ←   change of the score under PR, in % of P's   →   PR is better", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    return figure


def draw_angles() -> Figure:
    """Draw min |sin θ| of every layer under P and under PR, a panel for each study."""
    found = [each for study in tables.STUDIES if (each := tables.angles(study))]
    rows = [len(each.means) for each in found]
    figure, panels = pyplot.subplots(
        len(found),
        1,
        figsize=(7.2, 0.2 * sum(rows) + 0.75 * len(rows)),
        height_ratios=rows,
        squeeze=False,
        layout="constrained",
    )
    for panel, each in zip(panels[:, 0], found, strict=True):
        for row, (p, pr) in enumerate(each.means.values()):
            panel.plot((p, pr), (row, row), color=GREY, linewidth=1, zorder=1)
            panel.scatter(p, row, color=P_COLOUR, s=18, zorder=2, label="P" if row == 0 else None)
            panel.scatter(pr, row, color=PR_COLOUR, s=18, marker="D", zorder=2, label="PR" if row == 0 else None)
        panel.set_yticks(range(len(each.means)), each.means, fontsize=7)
        panel.invert_yaxis()
        panel.set_xlim(min(min(pair) for pair in each.means.values()) - 0.02, 1.005)
        panel.tick_params(axis="x", labelsize=8)
        panel.set_title(f"{each.study.name}, n = {len(each.improvements)}", fontsize=9, loc="left")
        panel.grid(axis="x", alpha=0.3)
    panels[0, 0].legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, frameon=False)
    panels[-1, 0].set_xlabel("min |sin θ| over a sample's outputs, averaged over samples", fontsize=8)
    return figure


def main() -> None:
    """Draw both figures."""
    pyplot.rcParams["svg.hashsalt"] = "the same ids in every drawing"
    for name, figure in {"gains.svg": draw_gains(), "angles.svg": draw_angles()}.items():
        figure.savefig(HERE / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
