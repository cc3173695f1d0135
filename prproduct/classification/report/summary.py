"""The summary of a report: how many differences are significant, and the size, interval and p value of each."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.classification.report.comparison import Comparison, Group
from prproduct.lab.report import observations
from prproduct.lab.report.content import (
    Block,
    Bullets,
    Paragraph,
    Section,
    Strong,
    Text,
    display,
    number,
    ordered,
    p_text,
)
from prproduct.lab.report.observations import how_tested, left_out


def summary(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """Return the section for readers who read nothing else."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = [Paragraph((Strong(_headline(groups, comparisons)),))]
    if comparisons:
        blocks.append(Bullets(tuple(map(_line, comparisons))))
    blocks += left_out(runs)
    if comparisons:
        measure = (
            "Errors are shares of wrong answers on the test images after the last epoch, in percent; differences are "
            "in percentage points."
        )
        blocks.append(Paragraph(f"{measure} {how_tested([one.adjusted for one in comparisons])}", note=True))
    return Section("Summary", tuple(blocks))


def verdict(comparison: Comparison) -> str:
    """Return the size of the difference and the number of pairs."""
    return observations.verdict(comparison.difference("last"), _is_better)


def outcome(comparison: Comparison) -> str:
    """Return "better" or "worse" if the difference is significant, else "open"."""
    return observations.outcome(comparison.difference("last"), comparison.adjusted, _is_better)


def _is_better(difference: float) -> bool:
    return difference < 0  # of errors


def _headline(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """Return in how many comparisons PR, or all other products if there are no runs of PR, differ from P."""
    if not any(group.counted for group in groups):
        return "No run is finished, so there is nothing to compare yet."
    asked = [comparison for comparison in comparisons if comparison.product == "pr"] or list(comparisons)
    if not asked:
        products = ", ".join(map(display, ordered(product for group in groups for product in group.counted)))
        return f"Nothing to compare: no finished runs of P and of another product have the same settings ({products})."
    products = ", ".join(map(display, ordered(comparison.product for comparison in asked)))
    if len(asked) == 1:
        return f"{products} compared with P: {verdict(asked[0])}, {_significance(asked[0])}."
    outcomes = [outcome(comparison) for comparison in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    return (
        f"{products} compared with P: significantly better in {better} of {len(asked)} comparisons, significantly "
        f"worse in {worse}."
    )


def _significance(comparison: Comparison) -> str:
    if comparison.adjusted is None:
        return "not tested"
    return "not significant" if outcome(comparison) == "open" else "significant"


def _line(comparison: Comparison) -> Text:
    """Return the size of a difference, and what the test says of it."""
    difference = comparison.difference("last")
    title = Strong(f"{display(comparison.product)}, {comparison.group.name}: {verdict(comparison)}")
    if difference is None or comparison.adjusted is None:
        return (title, "; not tested, which takes at least two pairs with unequal differences.")
    interval = f"{number(difference.low, sign=True)} to {number(difference.high, sign=True)}"
    return (title, f"; 95 % interval {interval}, p (Holm) {p_text(comparison.adjusted)}: {_significance(comparison)}.")
