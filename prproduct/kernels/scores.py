"""Passes in turn: a score of them is written down once, and played with other memory at every backward.

A backward is several passes, each over a range that threads share out. A score makes them one call, in which the
threads go from pass to pass by themselves: nothing goes back to Python between, and a small layer feels it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prproduct.kernels import threads
from prproduct.kernels.compiler import MOST_INTEGERS, STAND_IN


class Phase(NamedTuple):
    """A pass (`compiler.entries.Entry`) over a range, with its integers.

    A share of it begins when its thread is done with the pass before, or if it `waits`, when all are. It is left out,
    with all that follow, if the float64 at the address `unless` is not 0 then.
    """

    kernel: Any
    first: int
    last: int
    integers: Sequence[int]
    waits: bool = False
    unless: int = 0


def stand_in(index: int) -> int:
    """What stands for one of the numbers that a score will be played with; offsets may be added to it."""
    return (index + 1) * STAND_IN


class Score:
    """Passes to be run one after the other, written down once and played with other memory each time.

    Wherever they have `stand_in(k)` plus an offset, `play` puts the kth of its numbers plus that offset.
    """

    def __init__(self, *phases: Phase) -> None:
        self.phases, self.count, self.leader = phases, len(phases), conductor()
        table: list[int] = []
        for kernel, first, last, given, waits, unless in phases:
            table += (kernel.address, waits, len(given), unless, first, last, *given)
            if len(given) != kernel.integers:
                raise TypeError(f"{kernel.__name__} takes {kernel.integers} integers, not {len(given)}")
            if len(given) > MOST_INTEGERS:
                raise TypeError(f"{kernel.__name__} takes {len(given)} integers, more than {MOST_INTEGERS} in a score")
        self.table = (ctypes.c_int64 * len(table))(*table)
        self.address = ctypes.addressof(self.table)

    def play(self, count: int, *given: int) -> None:
        """Run the passes on so many threads, each in as many shares."""
        runtime = threads.openmp() if count > 1 else _ALONE
        if runtime is None:
            _on_our_pool(count, self.phases, given)
            return
        parallel, number, size, barrier = runtime
        team = _PACK[len(given)](number, size, barrier, count, self.count, self.address, 1, 0, 0, 0, *given)
        if parallel is None:
            self.leader.call(team)
        else:
            parallel(self.leader.address, team, count, 0)

    def play_rounds(self, count: int, place: int, changing: np.ndarray[Any, Any], *given: int) -> None:
        """Again and again in one call, each time with a row of the changing numbers, instead of those from `place` on.

        On torch's threads, or on this one: not in a forked child.
        """
        parallel, number, size, barrier = (threads.openmp() if count > 1 else None) or _ALONE
        rounds, width = changing.shape
        played = (count, self.count, self.address, rounds, place, width, changing.ctypes.data)
        team = _PACK[len(given)](number, size, barrier, *played, *given)
        if parallel is None:
            self.leader.call(team)
        else:
            parallel(self.leader.address, team, count, 0)


_ALONE = (None, 0, 0, 0)
_PACK = [struct.Struct(f"{10 + given}q").pack for given in range(40)]


@functools.cache
def conductor() -> Any:
    """What runs a score's passes one after the other."""
    from prproduct.kernels.compiler.entries import Conductor

    return Conductor()


def share_out(kernel: Any, count: int, first: int, last: int, *integers: int) -> None:
    """Run a pass on a range in so many equal shares, one of them on this thread."""
    if len(integers) != kernel.integers:
        raise TypeError(f"{kernel.__name__} takes {kernel.integers} integers, not {len(integers)}")
    _score_of(kernel).play(count, first, last, *integers)


@functools.cache
def _score_of(kernel: Any) -> Score:
    """One pass, with a stand-in for each of its numbers."""
    first, last, *integers = map(stand_in, range(2 + kernel.integers))
    return Score(Phase(kernel, first, last, integers))


def _on_our_pool(count: int, phases: Sequence[Phase], given: Sequence[int]) -> None:
    """What `entries.conduct` does."""
    pool = threads.pool()
    for phase in phases:
        kernel, numbers = phase.kernel, (phase.unless, phase.first, phase.last, *phase.integers)
        unless, first, last, *integers = (
            given[number // STAND_IN - 1] + number % STAND_IN if number >= STAND_IN else number for number in numbers
        )
        if unless and ctypes.c_double.from_address(unless).value != 0.0:
            return
        packed = kernel.pack(*integers)
        bounds = itertools.pairwise(first + (last - first) * share // count for share in range(count + 1))
        *elsewhere, (share, here) = enumerate(bounds)
        running = []
        for index, (start, end) in elsewhere:
            try:
                running.append(pool.submit(kernel.call, start, end, index, packed))
            except RuntimeError:  # the interpreter shuts down, and starts no more threads
                kernel.call(start, end, index, packed)
        kernel.call(*here, share, packed)
        for future in running:
            future.result()
