"""The summary in sentences: what was compared, the size of each difference, and whether it is significant."""

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
from prproduct.lab.report.observations import BASELINE, NBSP, how_tested, left_out
from prproduct.lab.report.statistics import SIGNIFICANCE, PairedDifference, Sample, detectable_difference


def summary(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """Return the section for readers who read nothing else."""
    runs = [run for group in groups for run in group.runs]
    answers = [sentence for group in groups if (sentence := _which_gradient(group))]
    blocks: list[Block] = [Paragraph((Strong(sentence),)) for sentence in [*answers, _headline(groups, comparisons)]]
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


def _which_gradient(group: Group) -> str | None:
    """Return which part of the gradient learns without the other (the paper's §1); None if P did not learn."""
    both, without_length = group.sample(BASELINE, "last"), group.sample("no-length", "last")
    lacking = next((name for name in ("no-direction", "no-direction-w") if name in group.counted), None)
    without_direction = group.sample(lacking, "last") if lacking else None
    if lacking is None or both is None or without_length is None or without_direction is None:
        return None
    if not group.learned(BASELINE):
        return None
    direction_learns, length_learns = group.learned("no-length"), group.learned(lacking)
    if direction_learns == length_learns:
        answer = f"{'Either' if direction_learns else 'Neither'} part of the gradient learns without the other"
    else:
        answer = f"The {'direction' if direction_learns else 'length'} gradient does the learning"
    return (
        f"{answer}: for {group.name}, the test error is {_percent(without_direction)} without the direction gradient, "
        f"{_percent(without_length)} without the length gradient, and {_percent(both)} with both."
    )


def _headline(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """Return the result of PR, or of all other products if there are no runs of PR, in one sentence."""
    if not any(group.counted for group in groups):
        return "No run is finished, so there is nothing to compare yet."
    asked = [comparison for comparison in comparisons if comparison.product == "pr"] or list(comparisons)
    if not asked:
        products = ordered(product for group in groups for product in group.counted)
        if BASELINE not in products:
            names = ", ".join(map(display, products))
            return f"Nothing can be compared: no run of the inner product P is finished, only of {names}."
        return "Nothing can be compared: no product stands beside the inner product P in the same configuration."
    name = display(asked[0].product) if len({comparison.product for comparison in asked}) == 1 else "Another product"
    if len(asked) == 1:
        return f"{name} compared with P: {verdict(asked[0])}. {_significance(asked[0])}"
    outcomes = [outcome(comparison) for comparison in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    return (
        f"{name} is significantly better than P in {better} of {len(asked)} comparisons, and significantly worse in "
        f"{worse}. In {outcomes.count('open')} the difference is not significant, or there are too few runs for a test."
    )


def _significance(comparison: Comparison) -> str:
    """Return a sentence on whether the difference is significant, or on why there is no test of it."""
    difference = comparison.difference("last")
    if difference is None:
        return "No seed is finished under both products."
    if difference.n == 1:
        return "One pair of runs does not tell chance from effect."
    if comparison.adjusted is None:
        return "It is the same in every pair, so that there is no spread to test it by."
    text = p_text(comparison.adjusted)
    p_value = f"p{NBSP}" + (text.replace(" ", NBSP) if text.startswith("<") else f"={NBSP}{text}")
    group = comparison.group
    no_run_learned = min(group.errors(comparison.product, "last").values()) > group.halfway
    if no_run_learned and group.learned(BASELINE):
        return f"A difference of this size needs no test ({p_value})."
    return f"The difference is {'' if comparison.adjusted < SIGNIFICANCE else 'not '}significant ({p_value})."


def _line(comparison: Comparison) -> Text:
    group, difference = comparison.group, comparison.difference("last")
    name = display(comparison.product)
    title = Strong(f"{name}, {group.name}: {verdict(comparison)}.")
    ours, baseline = group.sample(comparison.product, "last"), group.sample(BASELINE, "last")
    if difference is None or ours is None or baseline is None:
        return (title, " No seed is finished under both products.")
    words = f" Test error {_percent(ours)}, P's {_percent(baseline)}."
    if group.at_chance(comparison.product):
        words += f" {name} did not learn under this recipe: its error is that of guessing."
    words += f" {_significance(comparison)}"
    if comparison.adjusted is not None:
        words += f" 95 % interval {number(difference.low, sign=True)} to {number(difference.high, sign=True)} points."
    return (title, words + _detectable(comparison, difference))


def _detectable(comparison: Comparison, difference: PairedDifference) -> str:
    """Return a sentence on the smallest detectable difference, if this one is not significant; else ""."""
    if comparison.adjusted is None or outcome(comparison) != "open" or not difference.std:
        return ""
    seen = detectable_difference(difference.std, difference.n)
    return f" The smallest difference detectable with 80 % power in {difference.n} such pairs: {number(seen)} points."


def _percent(sample: Sample) -> str:
    return f"{number(sample.mean)}{NBSP}% (n{NBSP}={NBSP}{sample.n})"
