"""The summary of a report in plain words: what was compared, the differences, and whether they could be chance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from prproduct.captioning.dataset import SHARE_TRUE
from prproduct.captioning.report.runs import Comparison, Group, ScoredStage
from prproduct.captioning.report.training import PARTS, endings, larger_than_p, series, share
from prproduct.lab.report import observations
from prproduct.lab.report.content import Block, Bullets, Paragraph, Section, Strong, Text, display, number, p_text
from prproduct.lab.report.observations import BASELINE, NBSP, how_tested, left_out


def summary(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """The section with the headline, a line for each comparison, and how they were tested."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = [Paragraph((Strong(_headline(groups, comparisons)),))]
    if len(groups) == 1:
        blocks.append(Paragraph(f"All runs: {groups[0].name}."))
    items = [_line(comparison) for comparison in sorted(comparisons, key=lambda one: one.product != "pr")]
    for group in groups:
        items += [*_reinforced(group), *_angles(group), *_costs(group)]
    if items:
        blocks.append(Bullets(tuple(items)))
    blocks += left_out(runs)
    if comparisons:
        measure = "Products are judged by the CIDEr of test captions, in percent as the paper gives it."
        blocks.append(Paragraph(f"{measure} {how_tested([one.adjusted for one in comparisons])}", note=True))
    return Section("Summary", tuple(blocks))


def verdict(comparison: Comparison) -> str:
    """The size of the difference and the number of pairs, in words."""
    return observations.verdict(comparison.difference, lambda mean: mean > 0, digits=1)


def _headline(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    if not any(stage.counted for group in groups for stage in group.stages):
        return "No run is finished, so there is nothing to compare yet."
    if not any(list(group.scored_stages()) for group in groups):
        return "No run has scored test captions yet, so there is nothing to compare."
    asked = [comparison for comparison in comparisons if comparison.product == "pr"] or list(comparisons)
    if not asked:
        return "Nothing can be compared: no other product was trained in the same configuration as the inner product P."
    name = "PR" if asked[0].product == "pr" else "the other product"
    if not any(comparison.adjusted is not None for comparison in asked):
        why = "it takes at least two seeds, with different differences"
        return f"Whether {name} captions better than the inner product P cannot be said: {why}."
    outcomes = [observations.outcome(one.difference, one.adjusted, lambda mean: mean > 0) for one in asked]
    better, worse = outcomes.count("better"), outcomes.count("worse")
    question = f"Does {name} caption better than the inner product P?"
    if not better and not worse:
        return f"{question} In none of {len(asked)} comparisons is the difference significant."
    return f"{question} Significantly better in {better} of {len(asked)} comparisons, significantly worse in {worse}."


def _line(comparison: Comparison) -> Text:
    one, difference = comparison.scored, comparison.difference
    place = one.stage.name if one.group.alone else _place(one)
    title = Strong(f"{display(comparison.product)}, {place}: {verdict(comparison)}.")
    if difference is None:
        return (title, " No seed has the CIDEr of both products.")
    numbers = f" Test CIDEr {_mean(one, comparison.product)}, P's {_mean(one, BASELINE)}"
    if difference.n == 1:
        return (title, numbers, ". One pair does not tell chance from effect.")
    if comparison.adjusted is None:
        return (title, numbers, "; the difference is the same in every pair.")
    p_value = p_text(comparison.adjusted)
    relation = p_value if p_value.startswith("<") else f"= {p_value}"
    between = f"{number(difference.low, 1, sign=True)} to {number(difference.high, 1, sign=True)}"
    return (title, numbers, f"; the difference's 95 % interval is {between}, p {relation}.")


def _reinforced(group: Group) -> list[Text]:
    """How REINFORCE changed CIDEr and the share of true captions, by product, where both phases had the same search."""
    scored = list(group.scored_stages())
    found: list[Text] = []
    for later in (one for one in scored if one.stage.phase == "rl"):
        first = next((one for one in scored if one.stage.phase == "xe" and one.search == later.search), None)
        if first is None:
            continue
        changes = _changes(first, later, "CIDEr")
        if changes:
            found.append((Strong(f"{_place(later)} changed test CIDEr:"), f" {', '.join(changes)}."))
        changes = _changes(first, later, SHARE_TRUE)
        if changes:
            title = Strong(f"{_place(later)} changed the share of true test captions, in percent:")
            found.append((title, f" {', '.join(changes)}."))
    return found


def _changes(first: ScoredStage, later: ScoredStage, column: str) -> list[str]:
    """The mean before and after, by product, over the seeds that both stages have."""
    changes = []
    for product in later.scores:
        values = [one.values(product, column) for one in (first, later)]
        seeds = sorted(values[0].keys() & values[1].keys())
        if seeds:
            before, after = (statistics.fmean(by_seed[seed] for seed in seeds) for by_seed in values)
            step = f"{number(after - before, 1, sign=True)}, n{NBSP}={NBSP}{len(seeds)}"
            changes.append(f"{display(product)} from {number(before, 1)} to {number(after, 1)} ({step})")
    return changes


def _angles(group: Group) -> list[Text]:
    """In how many layers min |sin θ| ends larger under PR than under P; in the paper, in most."""
    found: list[Text] = []
    for stage in group.stages:
        values = series(stage)
        compared = [larger_than_p(endings(values, part), "pr") for part in PARTS if part in values]
        both = [larger for larger in compared if larger is not None]
        if both:
            title = Strong(group.heading(f"angles in {stage.name}:"))
            count = f"{sum(both)} of {len(both)} parts"
            found.append((title, f" min |sin θ| ends larger under PR than under P in {count}; the paper: in most."))
    return found


def _costs(group: Group) -> list[Text]:
    found: list[Text] = []
    for stage in group.stages:
        spent = share([run for runs in stage.counted.values() for run in runs.values()], "reward_seconds")
        if spent is not None:
            title = Strong(group.heading(f"cost of {stage.name}:"))
            found.append((title, f" the reward took {number(100 * spent, 1)}{NBSP}% of the training time."))
    return found


def _place(one: ScoredStage) -> str:
    return one.group.heading(one.stage.name)


def _mean(one: ScoredStage, product: str) -> str:
    sample = one.sample(product, "CIDEr")
    return "–" if sample is None else f"{number(sample.mean, 1)} (n{NBSP}={NBSP}{sample.n})"
