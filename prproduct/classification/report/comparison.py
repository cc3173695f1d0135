"""Groups of comparable runs: all settings but product and seed are equal, and runs are paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prproduct.classification.data.sources import SOURCES
from prproduct.lab.errors import InputError
from prproduct.lab.report import observations
from prproduct.lab.report.observations import BASELINE, by_product, distinguish, ending, mark_repetitions
from prproduct.lab.report.statistics import PairedDifference, Sample, holm, paired_difference
from prproduct.lab.runs import CONFIG, HARMLESS, Record

MEASURES = {"last": "last epoch", "selected": "selected epoch"}
_OF_AN_EPOCH = ("epoch", "train_loss", "train_error", "test_loss", "test_error", "time")


class Run(observations.Run):
    """A run of a classifier."""

    def error(self, measure: str) -> float | None:
        """Return its test error in percent, after the "last" or the "selected" epoch."""
        end = self.record.of("end")
        judged = end[0][measure] if end else None
        return None if judged is None or judged["test_error"] is None else 100 * float(judged["test_error"])


@dataclass(frozen=True)
class Group:
    """Runs that share all settings but product and seed."""

    name: str
    settings: Mapping[str, Any]  # the shared settings, with those of the recipe and the data
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
        """{product: {seed: run}} of the runs that count."""
        return by_product(self.runs)

    def learned(self, product: str) -> bool:
        """Return True if the product's error is nearer to the best product's than to that of guessing.

        True for all products if none learned, or if the number of classes is not known.
        """
        errors = {name: sample.mean for name in self.counted if (sample := self.sample(name, "last"))}
        guessing = 100 * (1 - 1 / SOURCES[self.data].classes) if self.data in SOURCES else math.inf
        best = min(errors.values())
        return errors[product] <= (best + guessing) / 2 or best >= 0.9 * guessing

    def errors(self, product: str, measure: str) -> dict[int, float]:
        """Return {seed: test error in percent}."""
        found = {seed: run.error(measure) for seed, run in self.counted.get(product, {}).items()}
        return {seed: error for seed, error in found.items() if error is not None}

    def sample(self, product: str, measure: str) -> Sample | None:
        """Return mean and standard deviation of the errors; None without any."""
        errors = self.errors(product, measure)
        return Sample.of(list(errors.values())) if errors else None

    def difference(self, product: str, measure: str) -> PairedDifference | None:
        """Return the product's errors minus the inner product's, over the seeds that both have."""
        return paired_difference(self.errors(product, measure), self.errors(BASELINE, measure))


@dataclass(frozen=True)
class Comparison:
    """A product compared with the inner product in one group."""

    group: Group
    product: str
    adjusted: float | None  # p value of the last epoch's errors, corrected by Holm's method; None: no test

    def difference(self, measure: str) -> PairedDifference | None:
        """Return the paired difference of the errors."""
        return self.group.difference(self.product, measure)


def comparisons(groups: Iterable[Group]) -> list[Comparison]:
    """Compare every product with the inner product in every group where both have finished runs."""
    pairs = [
        (group, product)
        for group in groups
        for product in group.counted
        if product != BASELINE and BASELINE in group.counted
    ]
    tests = [found.p_value if (found := group.difference(product, "last")) else None for group, product in pairs]
    return [Comparison(*pair, p_value) for pair, p_value in zip(pairs, holm(tests), strict=True)]


def groups(records: Sequence[Record]) -> list[Group]:
    """Group runs by all settings but product and seed; repetitions of a product and seed do not count."""
    by_settings: dict[str, list[Run]] = {}
    shared: dict[str, dict[str, Any]] = {}
    for record in records:
        settings = _settings(record)
        key = json.dumps(settings, sort_keys=True)
        shared[key] = settings
        by_settings.setdefault(key, []).append(Run(record, *_status(record)))
    every = list(shared.values())
    names = distinguish([f"{own['arch']} on {own['data']}" for own in every], every, _short)
    found = [
        Group(name, shared[key], mark_repetitions(by_settings[key])) for name, key in zip(names, shared, strict=True)
    ]
    return sorted(found, key=lambda group: (group.data, group.arch, group.name))


def _settings(record: Record) -> dict[str, Any]:
    path = record.folder / CONFIG
    try:
        own, data = dict(record.config["config"]), record.config["data"]
        own |= own.pop("recipe")
        str(own.pop("product")), int(own.pop("seed"))
        own = {key: value for key, value in own.items() if key not in HARMLESS and value is not None}
        settings = {**own, **{key: data[key] for key in ("fingerprint", "mean", "std")}}
        _ = settings["arch"], settings["data"], settings["epochs"], settings["protocol"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not that of a classifier's run ({error} is missing or wrong)") from None
    return settings


def _status(record: Record) -> tuple[str, bool]:
    """Return how a run ended, and whether it counts."""
    status, counts = ending(record, record.config["config"]["recipe"]["epochs"], _OF_AN_EPOCH)
    if counts and record.of("end")[0]["last"]["test_error"] is None:
        return "finished, its error is not a number", False
    return status, counts


def _short(value: Any) -> str:
    text = "none" if value in (None, [], ()) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
