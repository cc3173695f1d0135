"""Compiled functions that take memory by its address, and one way to call them all.

A pass does a part of a range, on one thread; what it needs beside are integers, most of them addresses, behind one
address of their own:

    pass(first, last, share, given)

(To what only other passes call, the first three are whatever it needs.)

So Python calls a pass as it calls C, in 2 µs whatever it takes, and one small function runs any passes one after the
other on a team of OpenMP's threads: a pass is compiled once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from prproduct.kernels.compiler import MOST_INTEGERS, STAND_IN
from prproduct.kernels.compiler.machine_code import address_of
from prproduct.kernels.compiler.numbers import FLOAT32, FLOAT64, INT64
from prproduct.kernels.compiler.translation import translate
from prproduct.kernels.compiler.words import ask, at, behind, call, integers, room

_C_PASS = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_char_p)  # it releases the GIL


class Entry:
    """A pass for numbers of so many bytes: its address, what calls it, and what packs its integers."""

    def __init__(self, function: Callable[..., Any], integers: int, size: int) -> None:
        self.__name__ = function.__name__
        name, one = f"{function.__module__}.{function.__name__}_{8 * size}", {4: FLOAT32, 8: FLOAT64}[size]
        self.address = address_of(name, lambda: translate(function, name, integers, one))
        self.call = _C_PASS(self.address)
        self.integers = integers
        self.pack = struct.Struct(f"{integers}q").pack


class Pass:
    """A pass over a range, with so many integers beside; compiled when first asked for."""

    def __init__(self, function: Callable[..., Any], integers: int) -> None:
        self.function, self.integers = function, integers
        self.entries: dict[int, Entry] = {}

    def __getitem__(self, size: int) -> Entry:
        """For numbers of so many bytes."""
        if size not in self.entries:
            self.entries[size] = Entry(self.function, self.integers, size)
        return self.entries[size]


def range_pass(integers: int) -> Callable[[Callable[..., Any]], Pass]:
    """Decorates a function of (first, last, share, given)."""
    return lambda function: Pass(function, integers)


_TEAM = 10  # integers
_FIXED = 3  # in a pass's line of the table: its address, whether it waits, how many integers it takes
_RANGE = 3  # the address of what leaves it out, first and last; behind these, its integers


def conduct(team: Any) -> None:
    """What each thread of a team runs: its shares of some passes, one pass after the other.

    The team has integers, and numbers behind them. The table has for each pass its address, whether it has to wait
    until all have done what comes before, and how many integers it takes; the address of a number that leaves it out,
    with all that follow, unless it is 0; its range; and its integers. In these last, stand-ins are replaced by numbers
    of the team; in every round, `changing` of them from a place on by the next from memory. The team may be smaller
    than the number of shares.
    """
    number, count, barrier, shares, passes, table, rounds, place, changing, memory = integers(team)
    me, threads = (ask(number), ask(count)) if number else (0, 1)
    numbers, given = room(_RANGE + MOST_INTEGERS), at(behind(team), 0, np.int64(0))
    for turn in range(rounds):
        line, changed = at(table, 0, np.int64(0)), at(memory, turn * changing - place, np.int64(0))
        for _ in range(passes):
            kernel, waits, own = line[0], line[1], line[2]
            for k in range(_RANGE + own):
                n = line[_FIXED + k]
                which = n // STAND_IN - 1
                value = n % STAND_IN
                if which >= place and which < place + changing:
                    value += changed[which]
                elif which >= 0:
                    value += given[which]
                numbers[k] = value
            line = at(line, _FIXED + _RANGE + own, np.int64(0))
            unless, first, size = numbers[0], numbers[1], numbers[2] - numbers[1]
            if waits and threads > 1:
                ask(barrier)
            if unless and at(unless, 0, 1.0)[0] != 0.0:
                return
            for share in range(shares * me // threads, shares * (me + 1) // threads):
                start, end = first + size * share // shares, first + size * (share + 1) // shares
                call(kernel, start, end, share, at(numbers, _RANGE, np.int64(0)))


class Conductor:
    """`conduct`, compiled: its address, and what calls it on one thread."""

    def __init__(self) -> None:
        name = f"{__name__}.conduct"
        self.address = address_of(name, lambda: translate(conduct, name, _TEAM, INT64, ranges=False))
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.address)
