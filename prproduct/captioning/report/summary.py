"""The summary of a report: how many differences are significant, and the size, interval and p value of each."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.captioning.report.runs import Comparison, Group
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
    """The section with the headline, a line for each comparison, and how they were tested."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = [Paragraph((Strong(_headline(groups, comparisons)),))]
    if len(groups) == 1:
        blocks.append(Paragraph(f"All runs: {groups[0].name}."))
    if comparisons:
        first_pr = sorted(comparisons, key=lambda one: one.product != "pr")
        blocks.append(Bullets(tuple(map(_line, first_pr))))
    blocks += left_out(runs)
    if comparisons:
        measure = "Products are judged by the CIDEr of test captions, in percent as the paper gives it."
        blocks.append(Paragraph(f"{measure} {how_tested([one.adjusted for one in comparisons])}", note=True))
    return Section("Summary", tuple(blocks))


def _is_better(difference: float) -> bool:
    return difference > 0  # of CIDEr


def _headline(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """In how many comparisons PR, or all other products if there are no runs of PR, differ from P."""
    if not any(stage.counted for group in groups for stage in group.stages):
        return "No run is finished, so there is nothing to compare yet."
    if not any(list(group.scored_stages()) for group in groups):
        return "No run has scored test captions yet, so there is nothing to compare."
    asked = [comparison for comparison in comparisons if comparison.product == "pr"] or list(comparisons)
    if not asked:
        return "Nothing to compare: no scored runs of P and of another product have the same settings."
    products = ", ".join(map(display, ordered(comparison.product for comparison in asked)))
    outcomes = [observations.outcome(one.difference, one.adjusted, _is_better) for one in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    return (
        f"{products} compared with P: significantly better in {better} of {len(asked)} comparisons, significantly "
        f"worse in {worse}."
    )


def _line(comparison: Comparison) -> Text:
    """The size of a difference of CIDEr, and what the test says of it."""
    one, difference = comparison.scored, comparison.difference
    place = one.stage.name if one.group.alone else one.group.heading(one.stage.name)
    size = observations.verdict(difference, _is_better, digits=1)
    title = Strong(f"{display(comparison.product)}, {place}: {size}")
    if difference is None or comparison.adjusted is None:
        return (title, "; not tested, which takes at least two pairs with unequal differences.")
    interval = f"{number(difference.low, 1, sign=True)} to {number(difference.high, 1, sign=True)}"
    open_ = observations.outcome(difference, comparison.adjusted, _is_better) == "open"
    p_value = p_text(comparison.adjusted)
    return (title, f"; 95 % interval {interval}, p (Holm) {p_value}: {'not ' if open_ else ''}significant.")
