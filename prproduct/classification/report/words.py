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
from prproduct.lab.report.observations import BASELINE, NBSP, left_out
from prproduct.lab.report.statistics import SIGNIFICANCE, PairedDifference, Sample, detectable_difference

_CLEAR = 1.0  # percentage points: a smaller difference between the two halves is not interpreted


def summary(groups: Sequence[Group], found: Sequence[Comparison]) -> Section:
    """Return the section that a reader needs who reads nothing else."""
    runs = [run for group in groups for run in group.runs]
    halves = [sentence for group in groups if (sentence := _which_half(group))]
    blocks: list[Block] = [Paragraph((Strong(sentence),)) for sentence in [*halves, _headline(groups, found)]]
    if found:
        blocks.append(Bullets(tuple(map(_line, found))))
    blocks += left_out(runs)
    if found:
        blocks.append(Paragraph(_method(len(found)), note=True))
    return Section("Summary", tuple(blocks))


def verdict(comparison: Comparison) -> str:
    """Return the size of the difference and the number of pairs."""
    return observations.verdict(comparison.difference("last"), _fewer)


def outcome(comparison: Comparison) -> str:
    """Return "better" or "worse" if the difference is significant, else "open"."""
    return observations.outcome(comparison.difference("last"), comparison.adjusted, _fewer)


def _fewer(mean: float) -> bool:
    return mean < 0


def _which_half(group: Group) -> str | None:
    """Return which half of the gradient does the learning (the paper's §1); None if a group lacks the runs for it."""
    both, without_length = group.sample(BASELINE, "last"), group.sample("no-length", "last")
    lacking = next((name for name in ("no-direction", "no-direction-w") if name in group.counted), None)
    without_direction = group.sample(lacking, "last") if lacking else None
    if both is None or without_length is None or without_direction is None:
        return None
    lost_length, lost_direction = (sample.mean - both.mean for sample in (without_length, without_direction))
    if abs(lost_direction - lost_length) < _CLEAR:
        answer = "Neither half of the gradient alone does the learning"
    else:
        answer = (
            f"The {'direction' if lost_direction > lost_length else 'length'} half of the gradient does the learning"
        )
    return (
        f"{answer}: for {group.name}, the test error is {_percent(without_direction)} without the direction half, "
        f"{_percent(without_length)} without the length half, and {_percent(both)} with both."
    )


def _headline(groups: Sequence[Group], found: Sequence[Comparison]) -> str:
    if not any(group.counted for group in groups):
        return "No run is finished, so there is nothing to compare yet."
    asked = [comparison for comparison in found if comparison.product == "pr"] or list(found)
    if not asked:
        products = ordered(product for group in groups for product in group.counted)
        if BASELINE not in products:
            return f"Nothing can be compared: no run of the inner product P is finished, only of {_listed(products)}."
        return "Nothing can be compared: no product stands beside the inner product P in the same configuration."
    name = display(asked[0].product) if len({comparison.product for comparison in asked}) == 1 else "The other product"
    if len(asked) == 1:
        return f"{name} compared with P: {verdict(asked[0])}. {_chance(asked[0])}"
    outcomes = [outcome(comparison) for comparison in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    return (
        f"{name} compared with P in {len(asked)} comparisons: better than chance explains in {better}, worse in "
        f"{worse}; in {outcomes.count('open')} chance can explain the difference, or there are too few runs to tell."
    )


def _chance(comparison: Comparison) -> str:
    """Return a sentence on whether chance can explain the difference."""
    difference = comparison.difference("last")
    if difference is None:
        return "No seed is finished under both products."
    if difference.n == 1:
        return "One pair of runs does not tell chance from effect."
    if comparison.adjusted is None:
        return "It is the same in every pair, so that there is no spread to test it by."
    p_value = _p(comparison.adjusted)
    if not comparison.group.learned(comparison.product):
        return f"It takes no test to see that (t test: {p_value})."
    if comparison.adjusted < SIGNIFICANCE:
        return f"That is more than chance explains ({p_value})."
    if not float(number(abs(difference.mean))):
        return f"A test finds none either ({p_value})."
    return f"By the test alone, chance can explain it ({p_value})."


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
    words += f" {_chance(comparison)}"
    if comparison.adjusted is not None:
        words += f" 95 % interval {number(difference.low, sign=True)} to {number(difference.high, sign=True)} points."
    return (title, words + _reach(comparison, difference))


def _reach(comparison: Comparison, difference: PairedDifference) -> str:
    """Return the smallest detectable difference, if this one is not significant."""
    if comparison.adjusted is None or outcome(comparison) != "open" or not difference.std:
        return ""
    seen = detectable_difference(difference.std, difference.n)
    return f" The smallest difference detectable with 80 % power in {difference.n} such pairs: {number(seen)} points."


def _percent(sample: Sample) -> str:
    return f"{number(sample.mean)}{NBSP}% (n{NBSP}={NBSP}{sample.n})"


def _p(value: float) -> str:
    text = p_text(value)
    return f"p {text}".replace(" ", NBSP) if text.startswith("<") else f"p{NBSP}={NBSP}{text}"


def _listed(products: Sequence[str]) -> str:
    return ", ".join(map(display, products))


def _method(tests: int) -> str:
    corrected = f", corrected for {tests} comparisons by Holm's method" if tests > 1 else ""
    return (
        "Errors are shares of wrong answers on the test images after the last epoch, in percent; differences are in "
        "percentage points. Runs are paired by their seed: both start from the same weights and see the same images in "
        f"the same order. “More than chance explains” means p < {SIGNIFICANCE:.2f} in a paired t test, two-sided"
        f"{corrected}."
    )
