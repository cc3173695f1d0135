"""Times that can be compared on a machine which is not alone, and when they cannot.

The contenders take turns, one step each, and the order rotates: what slows the machine for a while slows all of them,
and nobody always follows the same one. The native layer takes part twice, as two copies, so that the run says by how
much two times of the very same thing differ.

    ratio           median over turns of  ours / mean of the two native times
    spread          half the distance between the quartiles of these ratios
    self difference |median over turns of  second native / first native  − 1|
    waited          seconds per second that threads of ours were ready to run and had no core (Linux tells)

A ratio is too noisy to judge where the native layer differs from itself by more than 5 %; where the spread is above
15 % of the ratio; where they waited more than 0.1 s of every second for a core that others held, which takes both sides
equally long and hides the difference (a linear layer of 1.5 ms took 47 ms so, at a steady ratio of 1.01 instead of
2.2); or where the ratio is nearer to its target than the self difference makes of it, or than twice the standard error
of the median: measured again, it might fall on the other side.
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

NATIVE, AGAIN, OURS, REFERENCE = "native", "native again", "ours", "reference"
MOST_SELF_DIFFERENCE = 0.05
MOST_SPREAD = 0.15  # of the ratio
MOST_WAITED = 0.10  # seconds per second, of all threads


class Step(Protocol):
    """What a contender does in a turn."""

    def prepare(self) -> None:
        """What has to be done before, and is not timed."""

    def __call__(self) -> object:
        """What is timed."""


class Verdict(StrEnum):
    """What a row says about its target."""

    MET = "met"
    MISSED = "missed"
    NOISY = "too noisy"
    OPEN = "–"  # there is no target


@dataclass(frozen=True)
class Budget:
    """How long to measure: at least `turns`; short steps go on until they had `seconds`, or `most` turns."""

    turns: int = 15
    seconds: float = 1.5
    most: int = 200
    warm_up: int = 3  # turns; fewer if they take longer than `seconds`
    reference_turns: int = 3  # at least; more while the literal formula has taken less than `seconds`


@dataclass(frozen=True)
class Times:
    """Seconds of every step, by contender, in the order of the turns; the reference takes part in the first ones.

    >>> times = Times({NATIVE: [1.0, 2.0, 1.0], AGAIN: [1.0, 2.0, 1.0], OURS: [1.1, 2.2, 1.3]})
    >>> round(times.ratio, 3), round(times.self_difference, 3)
    (1.1, 0.0)
    """

    seconds: Mapping[str, list[float]]
    waited: float | None = None  # seconds per second; None where the system does not tell

    @property
    def native_ms(self) -> float:
        """The native step's median."""
        return 1e3 * statistics.median(self._native())

    @property
    def ratio(self) -> float:
        """How many times longer than the native step ours takes."""
        return statistics.median(self._ratios(OURS))

    @property
    def reference_ratio(self) -> float | None:
        """How many times longer the literal formula takes."""
        return statistics.median(self._ratios(REFERENCE)) if self.seconds.get(REFERENCE) else None

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles of the ratios."""
        ratios = self._ratios(OURS)
        if len(ratios) < 2:
            return math.inf
        lower, _, upper = statistics.quantiles(ratios, n=4)
        return (upper - lower) / 2

    @property
    def standard_error(self) -> float:
        """Of the median ratio: 1.253·σ/√n; of a normal distribution, the spread is 0.674·σ."""
        return 1.253 * self.spread / 0.674 / math.sqrt(len(self.seconds[OURS]))

    @property
    def self_difference(self) -> float:
        """By how much the native step differs from itself."""
        pairs = zip(self.seconds[NATIVE], self.seconds[AGAIN], strict=True)
        return abs(statistics.median(again / native for native, again in pairs) - 1)

    @property
    def noise(self) -> str | None:
        """Why no ratio of this row can be trusted, or None."""
        if self.self_difference > MOST_SELF_DIFFERENCE:
            return f"the native step differs from itself by {self.self_difference:.0%}"
        if self.spread > MOST_SPREAD * self.ratio:
            return f"the ratio spreads by ± {self.spread:.2g}"
        if self.waited is not None and self.waited > MOST_WAITED:
            return f"its threads together waited {self.waited:.2f} s of every second for a core"
        return None

    def verdict(self, target: float | None) -> Verdict:
        """Whether the ratio is within its target, as far as it can be told."""
        if self.noise is not None:
            return Verdict.NOISY
        if target is None:
            return Verdict.OPEN
        if abs(self.ratio - target) < max(self.ratio * self.self_difference, 2 * self.standard_error):
            return Verdict.NOISY
        return Verdict.MET if self.ratio <= target else Verdict.MISSED

    def _native(self) -> list[float]:
        return [sum(pair) / 2 for pair in zip(self.seconds[NATIVE], self.seconds[AGAIN], strict=True)]

    def _ratios(self, contender: str) -> list[float]:
        return [seconds / native for seconds, native in zip(self.seconds[contender], self._native(), strict=False)]


def waiting_seconds() -> float | None:
    """How long this process's threads, all together, have been ready to run without a core; None off Linux."""
    statistics = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
    return sum(int(nanoseconds) for _, nanoseconds, _ in statistics) / 1e9 if statistics else None


def take_turns(
    steps: Mapping[str, Step],
    budget: Budget,
    clock: Callable[[], float] = time.perf_counter,
    waiting: Callable[[], float | None] = waiting_seconds,
    timed: Callable[[Step], float] | None = None,
) -> Times:
    """Seconds of each contender's step, turn by turn, after some turns that do not count; `timed` takes one's time."""
    timed = timed or partial(_timed, clock=clock)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    collecting = gc.isenabled()
    gc.disable()  # a collection in one contender's step would be charged to it
    try:
        _warm_up(steps, budget, timed)
        gc.collect()
        start, waited_before = clock(), waiting()
        for turn in range(max(budget.turns, budget.most)):
            if turn >= budget.turns and all(sum(seconds[name]) >= budget.seconds for name in (NATIVE, OURS)):
                break
            for name in _order(steps, turn):
                if name != REFERENCE or _reference_has_a_turn(seconds[name], budget):
                    seconds[name].append(timed(steps[name]))
    finally:
        if collecting:
            gc.enable()
    waited_after = waiting()
    if waited_before is None or waited_after is None:
        return Times(seconds)
    return Times(seconds, (waited_after - waited_before) / (clock() - start))


def _order(steps: Mapping[str, object], turn: int) -> list[str]:
    names = list(steps)
    first = turn % len(names)
    return names[first:] + names[:first]


def _warm_up(steps: Mapping[str, Step], budget: Budget, timed: Callable[[Step], float]) -> None:
    """Turns that do not count; long steps need one only."""
    for turn in range(budget.warm_up):
        taken = sum(timed(step) for name, step in steps.items() if name != REFERENCE or turn == 0)
        if taken > budget.seconds:
            return


def _reference_has_a_turn(taken: list[float], budget: Budget) -> bool:
    """It is so much slower that few turns tell."""
    return len(taken) < budget.reference_turns or sum(taken) < budget.seconds


def _timed(step: Step, clock: Callable[[], float]) -> float:
    step.prepare()
    start = clock()
    step()
    return clock() - start
