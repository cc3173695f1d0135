"""Interleaved timing of several variants of a step, and whether a machine was too busy for it.

In each round every variant does one step, and the order rotates between rounds: a machine that is slow for a while
slows all variants, and no variant always follows the same one. Two copies of the native module take part, whose
difference shows the error of the measurement.

    ratio           median over rounds of  ours / mean of the two native times
    spread          half the distance between the quartiles of these ratios
    self difference |median over rounds of  second native / first native  − 1|
    waited          seconds per second that threads of this process were runnable but had no core (Linux only)

A row is too noisy if
- the self difference is above 5 %,
- the spread is above 15 % of the ratio,
- threads waited more than 0.1 s per second for a core: waiting adds the same time to both sides and hides their
  difference (a linear layer of 1.5 ms took 47 ms, at a steady ratio of 1.01 instead of 2.2), or
- the ratio is nearer to its target than the self difference times the ratio, or than two standard errors of the
  median: measured again, it might fall on the other side.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

NATIVE, AGAIN, OURS, REFERENCE = "native", "native again", "ours", "reference"
_CACHE = 2**28  # bytes, more than the second-level cache of any GPU so far
MOST_SELF_DIFFERENCE = 0.05
MOST_SPREAD = 0.15  # of the ratio
MOST_WAITED = 0.10  # seconds per second, of all threads


class Step(Protocol):
    """One step of a variant."""

    def prepare(self) -> None:
        """Prepare the step; this is not timed."""

    def __call__(self) -> object:
        """Do the step; this is timed."""


class Verdict(StrEnum):
    """Whether a ratio is within its target."""

    MET = "met"
    MISSED = "missed"
    NOISY = "too noisy"
    OPEN = "–"  # there is no target


@dataclass(frozen=True)
class Budget:
    """How long to measure: at least `rounds`, then until native and ours took `seconds` each, or for `most` rounds."""

    rounds: int = 15
    seconds: float = 1.5
    most: int = 200
    warm_up: int = 3  # rounds; fewer if they take longer than `seconds`
    reference_rounds: int = 3  # of the slow literal formula, at least; more while it has taken less than `seconds`


@dataclass(frozen=True)
class Times:
    """Seconds of every step, by variant, in the order of the rounds; the reference takes part in the first ones only.

    >>> times = Times({NATIVE: [1.0, 2.0, 1.0], AGAIN: [1.0, 2.0, 1.0], OURS: [1.1, 2.2, 1.3]})
    >>> round(times.ratio, 3), round(times.self_difference, 3)
    (1.1, 0.0)
    """

    seconds: Mapping[str, list[float]]
    waited: float | None = None  # seconds per second; None if unknown

    @property
    def native_ms(self) -> float:
        """The median of the native times, in milliseconds."""
        return 1e3 * statistics.median(self._native())

    @property
    def ratio(self) -> float:
        """The median of ours / native."""
        return statistics.median(self._ratios(OURS))

    @property
    def reference_ratio(self) -> float | None:
        """The median of literal formula / native; None if it was not measured."""
        return statistics.median(self._ratios(REFERENCE)) if self.seconds.get(REFERENCE) else None

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles of the ratios; infinite for a single ratio."""
        ratios = self._ratios(OURS)
        if len(ratios) < 2:
            return math.inf
        lower, _, upper = statistics.quantiles(ratios, n=4)
        return (upper - lower) / 2

    @property
    def standard_error(self) -> float:
        """The standard error of the median ratio, 1.253·σ/√n, where σ = spread / 0.674 as for normal values."""
        return 1.253 * self.spread / 0.674 / math.sqrt(len(self.seconds[OURS]))

    @property
    def self_difference(self) -> float:
        """The relative difference between the two native copies."""
        pairs = zip(self.seconds[NATIVE], self.seconds[AGAIN], strict=True)
        return abs(statistics.median(again / native for native, again in pairs) - 1)

    @property
    def noise(self) -> str | None:
        """Why the times are too noisy for any target, or None."""
        if self.self_difference > MOST_SELF_DIFFERENCE:
            return f"the native step differs from itself by {self.self_difference:.0%}"
        if self.spread > MOST_SPREAD * self.ratio:
            return f"the ratio spreads by ± {self.spread:.2g}"
        if self.waited is not None and self.waited > MOST_WAITED:
            return f"its threads together waited {self.waited:.2f} s of every second for a core"
        return None

    def verdict(self, target: float | None) -> Verdict:
        """Return whether the ratio is within its target, or that it is too noisy to say."""
        if self.noise is not None:
            return Verdict.NOISY
        if target is None:
            return Verdict.OPEN
        if abs(self.ratio - target) < max(self.ratio * self.self_difference, 2 * self.standard_error):
            return Verdict.NOISY
        return Verdict.MET if self.ratio <= target else Verdict.MISSED

    def _native(self) -> list[float]:
        return [sum(pair) / 2 for pair in zip(self.seconds[NATIVE], self.seconds[AGAIN], strict=True)]

    def _ratios(self, variant: str) -> list[float]:
        return [seconds / native for seconds, native in zip(self.seconds[variant], self._native(), strict=False)]


def waiting_seconds() -> float | None:
    """Return the seconds that all threads of this process were runnable but had no core; None if not on Linux."""
    statistics = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
    return sum(int(nanoseconds) for _, nanoseconds, _ in statistics) / 1e9 if statistics else None


def time_interleaved(
    steps: Mapping[str, Step],
    budget: Budget,
    clock: Callable[[], float] = time.perf_counter,
    waiting: Callable[[], float | None] = waiting_seconds,
    timed: Callable[[Step], float] | None = None,
) -> Times:
    """Time the steps of all variants in rounds, after a warm-up, and return their times.

    `timed(step)` prepares and does a step and returns its seconds; by default it reads `clock`. `waiting()` returns the
    seconds that threads have waited for a core so far.
    """
    timed = timed or partial(_timed, clock=clock)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    collecting = gc.isenabled()
    gc.disable()  # a collection would be counted as time of the step in which it happens
    try:
        _warm_up(steps, budget, timed)
        gc.collect()
        start, waited_before = clock(), waiting()
        for round_ in range(max(budget.rounds, budget.most)):
            if round_ >= budget.rounds and all(sum(seconds[name]) >= budget.seconds for name in (NATIVE, OURS)):
                break
            for name in _order(steps, round_):
                if name != REFERENCE or _reference_takes_part(seconds[name], budget):
                    seconds[name].append(timed(steps[name]))
    finally:
        if collecting:
            gc.enable()
    waited_after = waiting()
    if waited_before is None or waited_after is None:
        return Times(seconds)
    return Times(seconds, (waited_after - waited_before) / (clock() - start))


def _order(steps: Mapping[str, object], round_: int) -> list[str]:
    names = list(steps)
    first = round_ % len(names)
    return names[first:] + names[:first]


def _warm_up(steps: Mapping[str, Step], budget: Budget, timed: Callable[[Step], float]) -> None:
    """Do rounds that are not counted, until one takes longer than `budget.seconds`; the reference in the first only."""
    for round_ in range(budget.warm_up):
        taken = sum(timed(step) for name, step in steps.items() if name != REFERENCE or round_ == 0)
        if taken > budget.seconds:
            return


def _reference_takes_part(taken: list[float], budget: Budget) -> bool:
    """Return True while the reference has had too few rounds or too little time."""
    return len(taken) < budget.reference_rounds or sum(taken) < budget.seconds


def _timed(step: Step, clock: Callable[[], float]) -> float:
    step.prepare()
    start = clock()
    step()
    return clock() - start


class CudaTimer:
    """Times steps on a GPU by CUDA events, with a cold second-level cache."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache = torch.empty(_CACHE, dtype=torch.int8, device=device)

    def __call__(self, step: Step) -> float:
        """Return the seconds of a step on the GPU, including gaps in which it waits for Python."""
        with torch.cuda.device(self.device):
            step.prepare()
            self.cache.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1e3
