"""Runs sorted into what may be compared: groups that share all but product and seed, and pairs that share the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prproduct.lab.errors import InputError
from prproduct.lab.report.statistics import PairedDifference, Sample, holm, paired_difference
from prproduct.lab.runs import CONFIG, METRICS, Record

BASELINE = "p"
MEASURES = {"last": "last epoch", "selected": "selected epoch"}
_OF_AN_EPOCH = ("epoch", "train_loss", "train_error", "test_loss", "test_error", "time")


@dataclass(frozen=True)
class Run:
    """A run and how it ended; only those that count are averaged."""

    record: Record
    status: str
    counts: bool

    @property
    def product(self) -> str:
        """Its product."""
        return str(self.record.config["config"]["product"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.record.config["config"]["seed"])

    def error(self, measure: str) -> float | None:
        """Its test error in percent, after the last epoch or the selected one."""
        end = self.record.of("end")
        judged = end[0][measure] if end else None
        return None if judged is None or judged["test_error"] is None else 100 * float(judged["test_error"])

    @property
    def seconds(self) -> float:
        """Time spent on training and evaluating, as far as it was recorded."""
        times = [epoch["time"] for epoch in self.record.of("epoch")]
        return float(sum(time["train_seconds"] + time["evaluation_seconds"] for time in times))


@dataclass(frozen=True)
class Group:
    """Runs that share all but product and seed."""

    name: str
    settings: Mapping[str, Any]  # all that they share; keys of inner objects with dots
    runs: tuple[Run, ...]

    @property
    def arch(self) -> str:
        """The network."""
        return str(self.settings["arch"])

    @property
    def data(self) -> str:
        """The data set."""
        return str(self.settings["data"])

    @cached_property
    def counted(self) -> dict[str, dict[int, Run]]:
        """The runs that count, by product and seed: the inner product first, then PR, then others by name."""
        first = {BASELINE: 0, "pr": 1}
        products = sorted({run.product for run in self.runs if run.counts}, key=lambda name: (first.get(name, 2), name))
        return {
            product: {run.seed: run for run in self.runs if run.counts and run.product == product}
            for product in products
        }

    def errors(self, product: str, measure: str) -> dict[int, float]:
        """Test errors in percent by seed."""
        found = {seed: run.error(measure) for seed, run in self.counted.get(product, {}).items()}
        return {seed: error for seed, error in found.items() if error is not None}

    def sample(self, product: str, measure: str) -> Sample | None:
        """Mean and deviation of the errors."""
        errors = self.errors(product, measure)
        return Sample.of(list(errors.values())) if errors else None

    def difference(self, product: str, measure: str) -> PairedDifference | None:
        """The product's error minus the inner product's, over the seeds of both."""
        return paired_difference(self.errors(product, measure), self.errors(BASELINE, measure))


@dataclass(frozen=True)
class Comparison:
    """A product beside the inner product in one group."""

    group: Group
    product: str
    adjusted: float | None  # the p value after the last epoch, by Holm's method over all comparisons; None: no test

    def difference(self, measure: str) -> PairedDifference | None:
        """Of the errors, over paired seeds."""
        return self.group.difference(self.product, measure)


def comparisons(groups: Iterable[Group]) -> list[Comparison]:
    """Every product beside the inner product, wherever both have finished runs."""
    pairs = [
        (group, product)
        for group in groups
        for product in group.counted
        if product != BASELINE and BASELINE in group.counted
    ]
    tests = [found.p_value if (found := group.difference(product, "last")) else None for group, product in pairs]
    adjusted = iter(holm([value for value in tests if value is not None]))
    return [
        Comparison(group, product, None if test is None else next(adjusted))
        for (group, product), test in zip(pairs, tests, strict=True)
    ]


def groups(records: Sequence[Record]) -> list[Group]:
    """The runs by all that they share but product and seed; a second run of the same seed does not count again."""
    sorted_in: dict[str, list[Run]] = {}
    shared: dict[str, dict[str, Any]] = {}
    for record in records:
        settings = _settings(record)
        key = json.dumps(settings, sort_keys=True)
        shared[key] = settings
        sorted_in.setdefault(key, []).append(Run(record, *_status(record)))
    names = _names(list(shared.values()))
    found = [Group(name, shared[key], tuple(_once(sorted_in[key]))) for name, key in zip(names, shared, strict=True)]
    return sorted(found, key=lambda group: (group.data, group.arch, group.name))


def _settings(record: Record) -> dict[str, Any]:
    path = record.folder / CONFIG
    try:
        own, data = dict(record.config["config"]), record.config["data"]
        own |= own.pop("recipe")
        str(own.pop("product")), int(own.pop("seed"))
        settings = {**own, **{key: data[key] for key in ("fingerprint", "mean", "std")}}
        _ = settings["arch"], settings["data"], settings["epochs"], settings["protocol"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not that of a classifier's run ({error} is missing or wrong)") from None
    return settings


def _status(record: Record) -> tuple[str, bool]:
    """How a run ended, and whether it counts."""
    epochs, whole = record.of("epoch"), record.config["config"]["recipe"]["epochs"]
    for epoch in epochs:
        missing = [key for key in _OF_AN_EPOCH if key not in epoch]
        if missing:
            raise InputError(f"{record.folder / METRICS}: an epoch's record has no {missing[0]}; is it a classifier's?")
    if diverged := record.of("diverged"):
        return f"diverged at step {diverged[-1]['step']} of epoch {diverged[-1]['epoch'] + 1}", False
    if not record.finished:
        return f"unfinished: {len(epochs)} of {whole} epochs", False
    last = record.of("end")[0]["last"]
    if last is None:
        return "finished without an epoch", False
    return ("finished", True) if last["test_error"] is not None else ("finished, its error is not a number", False)


def _once(runs: Sequence[Run]) -> list[Run]:
    """Each product and seed counted once: the same training twice is no second observation."""
    seen: dict[tuple[str, int], Run] = {}
    kept = []
    for run in runs:
        first = seen.get((run.product, run.seed)) if run.counts else None
        if first is not None:
            run = Run(run.record, f"finished; repeats {first.record.folder}", False)
        elif run.counts:
            seen[run.product, run.seed] = run
        kept.append(run)
    return kept


def _names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Network and data; where groups share them, also the settings in which these differ."""
    names = []
    for own in settings:
        alike = [other for other in settings if (other["arch"], other["data"]) == (own["arch"], own["data"])]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        told = ", ".join(f"{key.replace('_', ' ')} {_short(own.get(key))}" for key in differing)
        names.append(f"{own['arch']} on {own['data']}" + (f" ({told})" if told else ""))
    return names


def _short(value: Any) -> str:
    text = "none" if value in (None, [], ()) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
