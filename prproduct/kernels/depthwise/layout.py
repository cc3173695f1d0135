"""Where the planes of a depthwise convolution lie in memory, and which runs of it are added up (`moves.py`).

Worked out once for every shape. All axes are one in memory, so that a shift by some places and rows is one number;
along an axis with a stride, places with the same remainder form a phase, in which the places that a tap meets are
next to each other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from prproduct.kernels.compiled import depthwise_moves

AXES = 3
_TOGETHER = 3  # runs that are added up at a time
_MANY_WINDOWS = 512
_VECTORS = 32  # numbers that the compiler's loops take at a time; the rest of a run would go one by one


def images_together(batch: int, windows: int) -> int:
    """How many images to do at a time, in blocks of nearly the same size: few windows would make short loops."""
    most = max(1, _MANY_WINDOWS // windows)
    return -(-batch // -(-batch // most))


class Axis(NamedTuple):
    """One axis of a layout: how many places, windows and taps, and how the windows lie."""

    size: int
    windows: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def padded(self) -> int:
        """Places in a phase of the padded axis. Without a stride, what follows begins with the padding behind."""
        if self.stride == 1:
            return max(self.windows, self.padding + self.size)
        return max(self.windows + self.reach, (self.padding + self.size - 1) // self.stride + 1)

    @property
    def reach(self) -> int:
        """From the first to the last of a window's places, in its phase."""
        return (self.kernel - 1) * self.dilation // self.stride

    @property
    def taps(self) -> list[tuple[int, int]]:
        """Of every tap its phase, and how far it is from the window's place there."""
        return [divmod(k * self.dilation, self.stride)[::-1] for k in range(self.kernel)]


@functools.lru_cache(maxsize=256)
def layout(
    size: int,
    images: int,
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    *sizes: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    """The integers by which passes know where planes lie, and what to add up; from sizes of input, output and kernel.

    >>> plan = layout(4, 1, 8, (1, 1), (0, 0), (1, 1), (32, 32), (30, 30), (3, 3))
    >>> bool(plan[depthwise_moves().PHASE] == 32 * 32)
    True
    """
    axes = [Axis(*numbers) for numbers in zip(*sizes, stride, padding, dilation, strict=True)]
    missing = [Axis(1, 1, 1, 1, 0, 1)] * (AXES - len(axes))
    if missing:  # several images lie along an axis of their own
        missing[0] = Axis(images, images, 1, 1, 0, 1)
    passes = depthwise_moves()
    step = math.prod(axis.size for axis in axes[-2:]) * (groups if images > 1 else 1)
    addresses = (each[size].address for each in (passes.move, passes.combine, passes.add_products))
    return _Layout([*missing, *axes], images, (step, *addresses)).integers()


def _rounded(numbers: int) -> int:
    return -(-numbers // _VECTORS) * _VECTORS


class _Layout:
    def __init__(self, axes: list[Axis], images: int, tail: tuple[int, ...]) -> None:
        self.axes, self.images, self.tail, self.used = axes, images, tail, 0
        self.steps = [math.prod(axis.padded for axis in axes[place + 1 :]) for place in range(AXES)]
        self.phases = math.prod(axis.stride for axis in axes)
        self.run = 1 + self._along(axis.windows - 1 for axis in axes)
        self.phase = max(math.prod(axis.padded for axis in axes), self.run + self._along(axis.reach for axis in axes))
        self.start = self._along(axis.padding // axis.stride for axis in axes)
        self.places = 1 + self._along((axis.padding + axis.size - 1) // axis.stride for axis in axes) - self.start
        self.taps = math.prod(axis.kernel for axis in axes)
        self.moving = [place for place, axis in enumerate(axes) if (axis.kernel, axis.stride) != (1, 1)]
        # Runs are shifted towards their beginning when they go back to places: there are zeros in front of all.
        margin, everything = self.phase - self.run, self.phases * self.phase
        self.kernel, self.zeros = self._take(self.taps + 1), self._take(self.phase)
        self.x, self.result = self._take(everything), self._take(everything)
        self.pieces = [self._take(margin + everything) + margin for _ in range(2)]
        self.turned, self.by_window = (self._take(margin + self.phase) + margin for _ in range(2))
        self.windows = math.prod(axis.windows for axis in axes)
        self.of_windows = [self._take(self.windows) for _ in range(8)]

    def integers(self) -> np.ndarray[Any, Any]:
        gathered, square_sums = self._to_windows()
        scattered, by_place = self._back_to_places()
        by_taps = self._by_taps()
        of_axes = [
            [getattr(axis, name) for axis in self.axes] for name in ("size", "windows", "padded", "stride", "padding")
        ]
        all_places = (self.phases - 1) * self.phase + self.places
        lengths = (_rounded(n) for n in (self.run, self.windows, self.phases * self.phase, all_places))
        numbers = (self.used, self.images, self.taps, self.phase, self.phases, self.start, *lengths)
        memory = (self.kernel, self.x, self.pieces[0], square_sums, self.turned, self.by_window, by_place, self.result)
        kinds = itertools.accumulate(map(len, (gathered, scattered, by_taps)), initial=0)
        rows = itertools.chain(gathered, scattered, by_taps)
        everything = (
            *itertools.chain(*of_axes),
            *numbers,
            *memory,
            *self.of_windows,
            *kinds,
            *self.tail,
            *itertools.chain(*rows),
        )
        return np.array(everything, dtype=np.int64)

    def _take(self, numbers: int) -> int:
        """Memory, and where it begins. Behind is room for the excess of rounded runs."""
        start = self.used
        self.used += _rounded(numbers) + _VECTORS
        return start

    def _along(self, positions: Iterable[int]) -> int:
        return sum(position * step for position, step in zip(positions, self.steps, strict=True))

    def _sum(self, target: int, runs: list[int], count: int) -> Iterator[tuple[int, ...]]:
        """The rows that add up runs, at least one. What they write in excess is not read, or is written again."""
        for start in range(0, max(1, len(runs)), _TOGETHER):
            some = (*runs[start : start + _TOGETHER], *(self.zeros,) * _TOGETHER)[:_TOGETHER]
            yield (start == 0, _rounded(count), target, *some, *(self.taps,) * _TOGETHER, *(self.x,) * _TOGETHER)

    def _to_windows(self) -> tuple[list[tuple[int, ...]], int]:
        """Axis by axis, from the last, whose phases lie next to each other; and where the result is."""
        rows: list[tuple[int, ...]] = []
        source, target = self.pieces
        for place in reversed(self.moving):
            axis, step = self.axes[place], self.steps[place]
            count = self.run + self._along(a.reach if k < place else 0 for k, a in enumerate(self.axes))
            for outer in range(math.prod(a.stride for a in self.axes[:place])):
                runs = [(outer * axis.stride + phase) * self.phase + far * step for phase, far in axis.taps]
                rows += self._sum(target + outer * self.phase, [source + run for run in runs], count)
            source, target = target, source
        return rows, source

    def _back_to_places(self) -> tuple[list[tuple[int, ...]], int]:
        """The transpose."""
        rows: list[tuple[int, ...]] = []
        source, (target, spare) = self.by_window, self.pieces
        for place in self.moving:
            axis, step, last = self.axes[place], self.steps[place], place == self.moving[-1]
            start, count = (self.start, self.places) if last else (0, self.phase)
            for outer in range(math.prod(a.stride for a in self.axes[:place])):
                begin = source + outer * self.phase + start
                for phase in range(axis.stride):
                    there = target + (outer * axis.stride + phase) * self.phase + start
                    rows += self._sum(there, [begin - far * step for p, far in axis.taps if p == phase], count)
            source, target, spare = target, spare, target
        return rows, source

    def _by_taps(self) -> list[tuple[int, ...]]:
        """For every phase those of its taps, three by three; and one row with none where it has none."""
        by_phase: dict[int, list[tuple[int, int]]] = {phase: [] for phase in range(self.phases)}
        for tap, (d, h, w) in enumerate(itertools.product(*(axis.taps for axis in self.axes))):
            phase = (d[0] * self.axes[1].stride + h[0]) * self.axes[2].stride + w[0]
            by_phase[phase].append((tap, self._along((d[1], h[1], w[1]))))
        rows = []
        for phase, taps in by_phase.items():
            here, begin = phase * self.phase, self.turned + self.start
            sums = self._sum(self.result + here + self.start, [begin - far for _, far in taps], self.places)
            for number, (*row,) in enumerate(sums):
                if self.phases > 1:  # the next phase follows at once, and another output channel adds to it
                    row[1] = self.places
                for k, (tap, far) in enumerate(taps[number * _TOGETHER : (number + 1) * _TOGETHER]):
                    row[6 + k], row[9 + k] = tap, self.x + here + far
                rows.append(tuple(row))
        return rows
