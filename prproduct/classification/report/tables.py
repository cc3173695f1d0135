"""The tables of a report on classifiers: errors, paired differences, training time, and the runs themselves."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prproduct.classification.report.comparison import MEASURES, Comparison, Group, Run
from prproduct.lab.report.content import (
    Block,
    Chart,
    Code,
    Heading,
    Interval,
    IntervalPanel,
    Paragraph,
    Section,
    Table,
    Text,
    display,
    number,
    p_text,
    plus_minus,
    seconds_text,
    written,
)
from prproduct.lab.report.observations import (
    BASELINE,
    ORIGIN_COLUMNS,
    RUNS_OPENING,
    by_place,
    origin,
    sort_key,
)
from prproduct.lab.report.statistics import Sample

_RUN_COLUMNS = ("product", "seed", "ended", "last, %", "selected, %", "time", *ORIGIN_COLUMNS)


def errors(groups: Sequence[Group]) -> Table:
    """Return the table of test errors of every group and product, after the last and after the selected epoch."""
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


def differences(comparisons: Sequence[Comparison]) -> Table:
    """Return the table of every product's paired difference to the inner product, with interval and test."""
    rows: list[tuple[Text, ...] | Heading] = []
    group = None
    for comparison in comparisons:
        if comparison.group is not group:
            group = comparison.group
            rows.append(Heading(group.name))
        last, selected = (comparison.difference(measure) for measure in MEASURES)
        tests: tuple[str, ...] = ("0", *5 * ["–"])
        if last is not None:
            mean, low, high = (number(value, sign=True) for value in (last.mean, last.low, last.high))
            interval = "–" if last.low is None else f"{low} to {high}"
            p_values = p_text(last.p_value), p_text(comparison.adjusted)
            tests = (str(last.n), mean, interval, *p_values, f"{last.lower} of {last.n}")
        rows.append((display(comparison.product), *tests, number(selected.mean if selected else None, sign=True)))
    header = ("product", "pairs", "difference", "95 % interval", "p", "p (Holm)", "lower in", "selected epoch")
    caption = (
        "Paired difference to the inner product P of the test error after the last epoch, in percentage points: below "
        "0 the product makes fewer errors, and “lower in” counts the pairs in which it does. The last column is the "
        "difference after the selected epoch, which is not tested."
    )
    return Table(caption, header, "lrrrrrrr", tuple(rows))


def differences_chart(comparisons: Sequence[Comparison]) -> Chart | None:
    """Return the chart of single differences after the last epoch, their means and intervals; None without any."""
    by_product: dict[str, list[Interval]] = {}
    for comparison in comparisons:
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


def results(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> Section:
    """Return the section of errors, and of the chart of their differences."""
    chart = differences_chart(comparisons)
    return Section("Results", (errors(groups), chart) if chart else (errors(groups),))


def cost(groups: Sequence[Group]) -> Section:
    """Return the table of seconds per epoch under each product, machine by machine."""
    rows: list[tuple[Text, ...] | Heading] = []
    for group in groups:
        rows.append(Heading(group.name))
        for place, by_product in by_place(group.counted).items():
            rows += _cost_rows(place, by_product)
    caption = (
        "Training time of an epoch in seconds: the median over all epochs of all runs without each run's first, which "
        "compiles. It includes the recording of angles, and waiting for other processes of the machine: speeds are "
        "compared by prproduct bench."
    )
    header = ("product", "epochs", "seconds", "machine")
    return Section("Cost", (Table(caption, header, "lrrl", tuple(rows)),))


def _cost_rows(place: str, by_product: Mapping[str, Sequence[Run]]) -> Iterator[tuple[Text, ...]]:
    for product, own in by_product.items():
        seconds = [time for run in own for time in run.epoch_seconds]
        yield display(product), str(len(seconds)), number(statistics.median(seconds)), place


def runs(groups: Sequence[Group]) -> list[Section]:
    """Return, for each group, a table of its runs and the settings that they share."""
    sections = [Section("Runs", (RUNS_OPENING,))]
    for group in groups:
        ordered = sorted(group.runs, key=sort_key)
        caption = f"{len(group.runs)} runs; {sum(run.counts for run in group.runs)} of them are averaged."
        table = Table(caption, _RUN_COLUMNS, "lrlrrrllll", tuple(_row(run) for run in ordered))
        blocks: tuple[Block, ...] = (Paragraph(_shared(group.settings)), table)
        sections.append(Section(f"{group.name}: runs", blocks, level=3))
    return sections


def _row(run: Run) -> tuple[Text, ...]:
    return (
        display(run.product),
        str(run.seed),
        run.status,
        number(run.error("last")),
        _selected(run),
        seconds_text(run.seconds),
        *origin(run.record),
    )


def _selected(run: Run) -> str:
    """Return the error of the selected epoch, and its number."""
    end = run.record.of("end")
    chosen = end[0]["selected"] if end else None
    return "–" if chosen is None else f"{number(run.error('selected'))} (epoch {chosen['epoch'] + 1})"


def _shared(settings: Mapping[str, Any]) -> Text:
    """Return the settings that all runs of a group share, in the order of the configuration."""
    shown = [
        (key.replace("_", " "), value) for key, value in settings.items() if key not in ("fingerprint", "mean", "std")
    ]
    words = ", ".join(f"{key} {written(value)}" for key, value in shown)
    return (f"They share: {words}; data fingerprint ", Code(str(settings["fingerprint"])), ".")


def _error(sample: Sample | None) -> str:
    return "–" if sample is None else plus_minus(sample.mean, sample.std)
