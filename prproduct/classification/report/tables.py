"""The tables and the chart of results: errors, paired differences, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from prproduct.classification.report.comparison import MEASURES, Comparison, Group, Run
from prproduct.lab.report.content import (
    Block,
    Chart,
    Heading,
    Interval,
    IntervalPanel,
    Section,
    Table,
    Text,
    display,
    number,
    p_text,
    plus_minus,
)
from prproduct.lab.report.observations import BASELINE
from prproduct.lab.report.origin import machine
from prproduct.lab.report.statistics import PairedDifference, Sample

_MEANINGFUL_SIGNS = 6  # with fewer pairs the sign test cannot reach p < 0.05


def errors(groups: Sequence[Group]) -> Table:
    """Mean ± deviation of every group and product, after the last epoch and after the selected one."""
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        rows.append(Heading(group.name))
        for product in group.counted:
            last, selected = (group.sample(product, measure) for measure in MEASURES)
            assert last, "a run that counts has an error"
            rows.append((display(product), str(last.n), _error(last), _error(selected)))
    caption = (
        "Test error in percent, mean ± standard deviation over n seeds: after the last epoch, and after the one with "
        "the smallest error on held-out training images."
    )
    return Table(caption, ("product", "n", *MEASURES.values()), "lrrr", tuple(rows))


def differences(found: Sequence[Comparison]) -> Table:
    """Every product's difference to the inner product, with its interval and test, for both measures."""
    rows: list[tuple[Text, ...] | Heading] = []
    above = None
    for comparison in found:
        if comparison.group is not above:
            above = comparison.group
            rows.append(Heading(above.name))
        for measure in MEASURES:
            difference = comparison.difference(measure)
            if difference is not None:
                rows.append(_difference(comparison, measure, difference))
    header = ("product", "after the", "pairs", "difference", "95 % interval", "p", "p (Holm)", "lower in")
    caption = (
        "Paired difference to the inner product P, in percentage points; below zero the product makes fewer errors. "
        "The judgement is by the last epoch; the selected one is shown beside it and not judged."
    )
    return Table(caption, header, "llrrrrrr", tuple(rows))


def _difference(comparison: Comparison, measure: str, difference: PairedDifference) -> tuple[Text, ...]:
    interval = "–"
    if difference.low is not None:
        interval = f"{number(difference.low, sign=True)} to {number(difference.high, sign=True)}"
    lower = f"{difference.negative} of {difference.n}"
    if difference.n >= _MEANINGFUL_SIGNS:
        lower += f" (sign test {p_text(difference.sign_test)})"
    return (
        display(comparison.product) if measure == "last" else "",
        MEASURES[measure],
        str(difference.n),
        number(difference.mean, sign=True),
        interval,
        p_text(difference.p_value),
        p_text(comparison.adjusted) if measure == "last" else "",
        lower,
    )


def picture(found: Sequence[Comparison]) -> Chart | None:
    """The single differences after the last epoch, their means and intervals."""
    by_product: dict[str, list[Interval]] = {}
    for comparison in found:
        group, difference = comparison.group, comparison.difference("last")
        if difference is None:
            continue
        ours, baseline = group.errors(comparison.product, "last"), group.errors(BASELINE, "last")
        points = tuple(ours[seed] - baseline[seed] for seed in ours if seed in baseline)
        interval = Interval(group.name, comparison.product, points, difference.mean, difference.low, difference.high)
        by_product.setdefault(comparison.product, []).append(interval)
    if not by_product:
        return None
    caption = (
        "Test error after the last epoch, minus that of P: each dot is a pair of runs with the same seed, the diamond "
        "their mean, the line its 95 % interval. Left of zero the product makes fewer errors. Scales differ."
    )
    panels = [
        IntervalPanel(f"{display(product)} − P", "percentage points", tuple(intervals))
        for product, intervals in by_product.items()
    ]
    return Chart(caption, tuple(panels))


def results(groups: Sequence[Group], found: Sequence[Comparison]) -> Section:
    """Errors, differences, and their picture."""
    chart = picture(found)
    compared: tuple[Block, ...] = (differences(found), chart) if chart else ()
    return Section("Results", (errors(groups), *compared))


def cost(groups: Sequence[Group]) -> Section:
    """Seconds of an epoch under each product, and how many times the inner product's that is."""
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        by_place: dict[str, dict[str, list[float]]] = {}
        for product, runs in group.counted.items():
            for run in runs.values():
                by_place.setdefault(_place(run), {}).setdefault(product, []).extend(_whole_epochs(run))
        rows.append(Heading(group.name))
        for place, times in by_place.items():
            rows += _cost_rows(place, times)
    caption = (
        "Training time of an epoch: the median over all epochs of all runs, but for each run's first, which compiles. "
        "It includes the recording of angles where they were recorded. The ratio is to P on the same machine; other "
        "work on it at the same time goes into these numbers, so that prproduct bench is the better judge of speed."
    )
    header = ("product", "epochs", "seconds", "ratio to P", "machine")
    return Section("Cost", (Table(caption, header, "lrrrl", tuple(rows)),))


def _place(run: Run) -> str:
    """The machine; recording angles takes time, so that runs that do are compared with each other."""
    angles = run.record.config["config"].get("angles")
    return machine(run.record) + (f", angles every {angles} steps" if angles else "")


def _cost_rows(place: str, times: dict[str, list[float]]) -> Iterator[tuple[Text, ...]]:
    base = statistics.median(times[BASELINE]) if BASELINE in times else None
    for product, seconds in times.items():
        median = statistics.median(seconds)
        yield display(product), str(len(seconds)), number(median), number(median / base) if base else "–", place


def _whole_epochs(run: Run) -> list[float]:
    """Seconds of the epochs that were trained in one piece; of one that was resumed only the rest was timed."""
    times = [epoch["time"] for epoch in run.record.of("epoch")]
    samples = [time["train_seconds"] * time["samples_per_second"] for time in times]
    whole = [time["train_seconds"] for time, count in zip(times, samples, strict=True) if count > 0.999 * max(samples)]
    return whole[1:] if len(whole) > 1 else whole


def _error(sample: Sample | None) -> str:
    return "–" if sample is None else plus_minus(sample.mean, sample.std)
