"""Runs as observations: how each ended, where it ran, which are averaged, and how a difference is stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from prproduct.lab.errors import InputError
from prproduct.lab.progress import counted
from prproduct.lab.record_files import METRICS
from prproduct.lab.report.content import ORDER, Block, Code, Line, Paragraph, Text, number, ordered
from prproduct.lab.report.statistics import SIGNIFICANCE, PairedDifference, Sample
from prproduct.lab.runs import Record
from prproduct.probe import AngleRecord

BASELINE = "p"
BAND = "Lines are means over seeds, bands one standard deviation to each side."
RUNS_OPENING = Paragraph(
    "All runs that were found. Those that are unfinished, diverged or repeat another are in no average. A + after a "
    "commit means uncommitted changes."
)
ORIGIN_COLUMNS = ("folder", "commit", "command", "machine")
NBSP = "\u00a0"  # keeps a number and its unit on one line


@dataclass(frozen=True)
class Run:
    """A run, how it ended, and whether it counts: only runs that count are averaged."""

    COMPLETE: ClassVar[float] = 0.999  # an epoch with fewer than this share of the samples of the largest is not timed

    record: Record
    status: str
    counts: bool

    @property
    def product(self) -> str:
        """The name of its product."""
        return str(self.record.config["config"]["product"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.record.config["config"]["seed"])

    @property
    def epochs(self) -> list[Mapping[str, Any]]:
        """The records of its epochs."""
        return self.record.of("epoch")

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation of all recorded epochs."""
        times = [epoch["time"] for epoch in self.epochs]
        return float(sum(time["train_seconds"] + time["evaluation_seconds"] for time in times))

    @property
    def epoch_seconds(self) -> list[float]:
        """Training seconds of each epoch but the first, which compiles, and a resumed one, timed in its last part only.

        The first is kept if there is no other.
        """
        times = [epoch["time"] for epoch in self.epochs]
        samples = [time["train_seconds"] * time["samples_per_second"] for time in times]
        least = self.COMPLETE * max(samples, default=0.0)
        whole = [time["train_seconds"] for time, count in zip(times, samples, strict=True) if count >= least]
        return whole[1:] if len(whole) > 1 else whole


R = TypeVar("R", bound=Run)
ByProduct = dict[str, dict[int, R]]
Values = Mapping[str, Mapping[int, Mapping[float, float]]]  # product → seed → epoch or step → value
ByLayer = Mapping[str, Values]  # layer → product → seed → step → value


def ending(record: Record, epochs: int, keys: Sequence[str]) -> tuple[str, bool]:
    """Return how a run of `epochs` epochs ended, and whether it counts; InputError if an epoch's record lacks a key."""
    done = record.of("epoch")
    for epoch in done:
        missing = [key for key in keys if key not in epoch]
        if missing:
            task = record.config["task"]
            raise InputError(f"{record.folder / METRICS}: an epoch's record has no {missing[0]}; is it a {task}'s?")
    if diverged := record.of("diverged"):
        return f"diverged at step {diverged[-1]['step']} of epoch {diverged[-1]['epoch'] + 1}", False
    if not record.finished:
        return f"unfinished: {len(done)} of {epochs} epochs", False
    last = record.of("end")[0]["last"]
    return ("finished without an epoch", False) if last is None else ("finished", True)


def mark_repetitions(runs: Sequence[R]) -> tuple[R, ...]:
    """Return the runs, with repetitions of a product and seed not counted: they are no independent observation."""
    seen: dict[tuple[str, int], R] = {}
    kept = []
    for run in runs:
        first = seen.get((run.product, run.seed)) if run.counts else None
        if first is not None:
            run = replace(run, status=f"finished; repeats {first.record.folder}", counts=False)
        elif run.counts:
            seen[run.product, run.seed] = run
        kept.append(run)
    return tuple(kept)


def by_product(runs: Sequence[R]) -> ByProduct[R]:
    """Return {product: {seed: run}} of the runs that count, with the products in the order of the paper."""
    counted = [run for run in runs if run.counts]
    products = ordered(run.product for run in counted)
    return {product: {run.seed: run for run in counted if run.product == product} for product in products}


def sort_key(run: Run) -> tuple[int, str, int, str]:
    """Return the sort key of a run: its product in the order of the paper, then its seed."""
    place = ORDER.index(run.product) if run.product in ORDER else len(ORDER)
    return place, run.product, run.seed, str(run.record.folder)


def by_place(runs: ByProduct[R]) -> dict[str, dict[str, list[R]]]:
    """Return {place: {product: runs}}: times of runs of several places are not averaged.

    A place is a machine and how often angles were recorded, which takes time.
    """
    found: dict[str, dict[str, list[R]]] = {}
    for product, seeds in runs.items():
        for run in seeds.values():
            angles = run.record.config["config"].get("angles")
            place = machine(run.record) + (f", angles every {angles} steps" if angles else "")
            found.setdefault(place, {}).setdefault(product, []).append(run)
    return found


def by_layer(
    runs: Mapping[str, Mapping[int, Sequence[AngleRecord]]], value: Callable[[AngleRecord], float | None]
) -> ByLayer:
    """Return a statistic of angle records, without NaN and infinity, with the layers in the order of the records."""
    found: dict[str, dict[str, dict[int, dict[float, float]]]] = {}
    for product, seeds in runs.items():
        for seed, records in seeds.items():
            for record in records:
                own, here = found.setdefault(record.name, {}), value(record)
                if here is not None and math.isfinite(here):
                    own.setdefault(product, {}).setdefault(seed, {})[record.step] = here
    return {name: values for name, values in found.items() if values}


def epoch_lines(runs: ByProduct[R], key: str, scale: float) -> tuple[Line, ...]:
    """Return the lines of a value over the epochs, counted from 1, with gaps where it was not finite."""
    values = {
        product: {
            seed: {
                epoch["epoch"] + 1: math.nan if (value := epoch.get(key)) is None else scale * value
                for epoch in run.epochs
            }
            for seed, run in seeds.items()
        }
        for product, seeds in runs.items()
    }
    return lines(values)


def lines(values: Values) -> tuple[Line, ...]:
    """Return a line for each product: the mean over seeds, with a band of one standard deviation if there are several.

    It has the places that all seeds have: elsewhere it would jump between the means of different seeds.

    >>> lines({"pr": {0: {1: 2.0, 2: 1.0}, 1: {1: 4.0, 2: math.nan}}})
    (Line(product='pr', x=(1, 2), y=(3.0, 1.0), low=(1.585..., 1.0), high=(4.414..., 1.0)),)
    >>> lines({"pr": {0: {0: 1.0, 40: 2.0}, 1: {0: 1.0, 20: 3.0, 40: 2.0}}})[0].x
    (0, 40)
    """
    drawn = []
    for product, seeds in values.items():
        every = [set(found) for found in seeds.values() if found]
        places = sorted((set.intersection(*every) or set.union(*every)) if every else ())
        samples = [_sample(found.get(place, math.nan) for found in seeds.values()) for place in places]
        mean = tuple(sample.mean for sample in samples)
        deviation = [sample.std or 0.0 for sample in samples]
        low = tuple(m - d for m, d in zip(mean, deviation, strict=True)) if any(deviation) else ()
        high = tuple(m + d for m, d in zip(mean, deviation, strict=True)) if any(deviation) else ()
        if places:
            drawn.append(Line(product, tuple(places), mean, low, high))
    return tuple(drawn)


def _sample(values: Iterable[float]) -> Sample:
    finite = [value for value in values if math.isfinite(value)]
    return Sample.of(finite) if finite else Sample(0, math.nan, None)


def verdict(difference: PairedDifference | None, better: Callable[[float], bool], digits: int = 2) -> str:
    """Return the size of a difference and the number of pairs, in words.

    >>> verdict(PairedDifference(2, 71.0, 1.0, 62.0, 80.0, 0.06, 0), lambda mean: mean < 0, 1)
    '71.0 points worse (n\xa0=\xa02)'
    """
    if difference is None:
        return "no seed under both products"
    size = number(abs(difference.mean), digits)
    how = f"{size} points {'better' if better(difference.mean) else 'worse'}" if float(size) else "no difference"
    return f"{how} (n{NBSP}={NBSP}{difference.n})"


def outcome(difference: PairedDifference | None, adjusted: float | None, better: Callable[[float], bool]) -> str:
    """Return "better" or "worse" if the difference is significant, else "open".

    >>> outcome(PairedDifference(2, 71.0, 1.0, 62.0, 80.0, 0.06, 0), 0.06, lambda mean: mean < 0)
    'open'
    """
    if difference is None or adjusted is None or adjusted >= SIGNIFICANCE:
        return "open"
    return "better" if better(difference.mean) else "worse"


def how_tested(p_values: Sequence[float | None]) -> str:
    """Return how runs are paired and when a difference is called significant, for the end of a summary.

    >>> how_tested([0.02, None, 0.4]).endswith("two-sided, corrected for 2 tests by Holm's method.")
    True
    """
    tests = sum(p_value is not None for p_value in p_values)
    corrected = f", corrected for {tests} tests by Holm's method" if tests > 1 else ""
    return (
        "Runs are paired by their seed: both start from the same weights and see the same images in the same order. A "
        f"difference is significant if p < {SIGNIFICANCE:.2f} in a paired t test, two-sided{corrected}."
    )


def distinguish(
    names: Sequence[str], settings: Sequence[Mapping[str, Any]], written: Callable[[Any], str] = str
) -> list[str]:
    """Return the names; equal ones with the settings in which they differ.

    >>> distinguish(["rl", "rl"], [{"beams": 1, "seed": 0}, {"beams": 5, "seed": 0}])
    ['rl (beams 1)', 'rl (beams 5)']
    """
    found = []
    for name, own in zip(names, settings, strict=True):
        alike = [other for known, other in zip(names, settings, strict=True) if known == name]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        settings_text = ", ".join(f"{key.replace('_', ' ')} {written(own.get(key, 'none'))}" for key in differing)
        found.append(name + (f" ({settings_text})" if settings_text else ""))
    return found


def left_out(runs: Sequence[Run]) -> list[Block]:
    """Return a paragraph on the runs that do not count, if there are any."""
    left = sum(not run.counts for run in runs)
    several = f"{counted(len(runs), 'run')} {'is' if left == 1 else 'are'}"
    return [Paragraph(f"{left} of {several} left out of every average; the last section says why.")] if left else []


def origin(record: Record) -> tuple[Text, ...]:
    """Return the cells of the columns `ORIGIN_COLUMNS`."""
    there = record.config["environment"]
    return (
        Code(str(record.folder)),
        Code(commit(record)),
        Code(str(there.get("command", "not recorded"))),
        f"{machine(record)}, torch {there.get('versions', {}).get('torch', '?')}",
    )


def machine(record: Record) -> str:
    """Return processor, device and threads of a run.

    >>> from pathlib import Path
    >>> machine(Record(Path("a"), {"environment": {"processor": "x86_64", "threads": 2}}, ()))
    'x86_64, ?, 2 threads'
    """
    there = record.config["environment"]
    hardware = there.get("hardware", {})
    device, processes = hardware.get("device", "?"), hardware.get("processes", 1)
    threads = there.get("threads", "?")
    words = [str(there.get("processor", "?")), str(device), f"{threads} thread{'s' * (threads != 1)}"]
    return ", ".join([*words, *([f"{processes} processes"] if processes != 1 else [])])


def commit(record: Record) -> str:
    """Return the first digits of the commit, with a + if files had been changed since.

    >>> from pathlib import Path
    >>> commit(Record(Path("a"), {"environment": {"commit": "0123456789abcdef+"}}, ()))
    '0123456789+'
    """
    whole = record.config["environment"].get("commit")
    return "not recorded" if whole is None else whole[:10] + ("+" if whole.endswith("+") else "")
