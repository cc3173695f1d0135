"""The summary of a report: how many differences are significant, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.classification.report.comparison import Comparison, Group
from prproduct.classification.report.tables import differences
from prproduct.lab.report import observations
from prproduct.lab.report.content import Block, Paragraph, Section, Strong, display, ordered
from prproduct.lab.report.observations import how_tested, left_out


def summary(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """Return the section for readers who read nothing else."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = [Paragraph((Strong(_headline(groups, comparisons)),))]
    if comparisons:
        blocks.append(differences(comparisons))
    blocks += left_out(runs)
    if comparisons:
        blocks.append(Paragraph(how_tested([one.adjusted for one in comparisons]), note=True))
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
        significance = {"open": "not significant"}.get(outcome(asked[0]), "significant")
        tested = significance if asked[0].adjusted is not None else "not tested"
        return f"{products} compared with P: {verdict(asked[0])}, {tested}."
    outcomes = [outcome(comparison) for comparison in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    return (
        f"{products} compared with P: significantly better in {better} of {len(asked)} comparisons, significantly "
        f"worse in {worse}."
    )
