"""The summary in plain words: what was compared, what came out, and whether it could be chance."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.classification.report.comparison import Comparison, Group
from prproduct.lab.names import display
from prproduct.lab.report import observations
from prproduct.lab.report.content import Block, Bullets, Paragraph, Section, Strong, Text, number, p_text
from prproduct.lab.report.observations import BASELINE, left_out
from prproduct.lab.report.statistics import SIGNIFICANCE, PairedDifference, Sample, detectable_difference

NBSP = "\u00a0"  # keeps a number and its unit on one line


def summary(groups: Sequence[Group], found: Sequence[Comparison]) -> Section:
    """What a reader should know who reads nothing else."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = [Paragraph((Strong(_headline(groups, found)),))]
    if found:
        blocks.append(Bullets(tuple(map(_line, sorted(found, key=lambda comparison: comparison.product != "pr")))))
    blocks += left_out(runs)
    if found:
        blocks.append(Paragraph(_method(len(found)), note=True))
    return Section("Summary", tuple(blocks))


def verdict(comparison: Comparison) -> str:
    """In a few words: better, worse, not shown, or why it cannot be said."""
    return observations.verdict(comparison.difference("last"), comparison.adjusted, lambda mean: mean < 0)


def _headline(groups: Sequence[Group], found: Sequence[Comparison]) -> str:
    if not any(group.counted for group in groups):
        return "No run is finished, so there is nothing to compare yet."
    asked = [comparison for comparison in found if comparison.product == "pr"] or list(found)
    if not asked:
        products = sorted({product for group in groups for product in group.counted})
        if BASELINE not in products:
            return f"Nothing can be compared: no run of the inner product P is finished, only of {_listed(products)}."
        return "Nothing can be compared: no product stands beside the inner product P in the same configuration."
    name = "PR" if asked[0].product == "pr" else "the other product"
    question = f"Does {name} do better than the inner product P?"
    verdicts = [verdict(comparison) for comparison in asked]
    better, worse = verdicts.count("significantly better"), verdicts.count("significantly worse")
    if not any(comparison.adjusted is not None for comparison in asked):
        return f"Whether {name} does better than P cannot be said: it takes at least two seeds under both."
    if len(asked) == 1:
        outcome = "Yes, significantly" if better else "No, significantly worse" if worse else "That is not shown"
        return f"{question} {outcome}."
    if not better and not worse:
        return f"{question} In none of {len(asked)} comparisons is a difference shown."
    return f"{question} Significantly better in {better} of {len(asked)} comparisons, significantly worse in {worse}."


def _line(comparison: Comparison) -> Text:
    group, difference = comparison.group, comparison.difference("last")
    title = Strong(f"{display(comparison.product)}, {group.name}: {verdict(comparison)}.")
    ours, baseline = group.sample(comparison.product, "last"), group.sample(BASELINE, "last")
    if difference is None or ours is None or baseline is None:
        return (title, " No seed is finished under both products.")
    errors = f" Test error {_percent(ours)}, P's {_percent(baseline)}; "
    if difference.n == 1:
        return (
            title,
            errors,
            f"in the one pair {_points(difference.mean)}. One pair does not tell chance from effect.",
        )
    if comparison.adjusted is None:
        return (title, errors, f"{_points(difference.mean)} in each of {difference.n} pairs.")
    return (title, errors, _numbers(difference, comparison.adjusted), _reach(comparison, difference))


def _numbers(difference: PairedDifference, adjusted: float) -> str:
    corrected = "" if adjusted == difference.p_value else "corrected "
    return (
        f"over {difference.n} pairs {_points(difference.mean)}, 95 % interval {number(difference.low, sign=True)} to "
        f"{number(difference.high, sign=True)}, {corrected}{_p(adjusted)}."
    )


def _reach(comparison: Comparison, difference: PairedDifference) -> str:
    """What so few pairs could have shown, where they showed nothing."""
    if verdict(comparison) != "no difference shown" or not difference.std:
        return ""
    seen = detectable_difference(difference.std, difference.n)
    return (
        f" With this spread {difference.n} pairs show a difference four times out of five only from {number(seen)} on."
    )


def _percent(sample: Sample) -> str:
    return f"{number(sample.mean)}{NBSP}% (n{NBSP}={NBSP}{sample.n})"


def _points(mean: float) -> str:
    if not float(f"{mean:.2f}"):
        return "no difference to two decimals"
    return f"{number(abs(mean))} points {'lower' if mean < 0 else 'higher'}"


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
        f"the same order. “Significantly” means p < {SIGNIFICANCE:.2f} in a paired t test, two-sided{corrected}."
    )
