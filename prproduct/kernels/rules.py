"""The gradients of a product by the compiled passes: what all kinds of layers share.

A rule holds input and weight, the norms of their vectors and p; for a gradient of the output it gives dX and dW:

    split        one pass over p and g writes D∘g, and adds up a number for every weight vector and every data vector
    native       torch's own backward, of D∘g
    add along    dW and dX get their multiple of each weight vector and each data vector

`plain_rule.py` is the rule in plain torch, `linear_rule.py` and `convolution_rule.py` are the compiled ones; depthwise
convolutions do all three at once (`depthwise/`). What passes keep between the steps is one piece of memory, and all
memory is handed to them by address.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.compiled import passes, program_passes
from prproduct.kernels.memory import LARGE, borrow, give_back
from prproduct.kernels.pairs import floor_of_sin_square, negligible_excess
from prproduct.kernels.programs import Program
from prproduct.kernels.scores import Phase, Score
from prproduct.kernels.tables import FIELDS, SPARE_REGISTERS, STRIP, WEIGHT_INVERSE, WEIGHT_VALUE

Gradients = tuple[Tensor | None, Tensor | None]  # of input and weight
ThreeGradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # and of the bias
Wanted = tuple[bool, bool, bool]  # which of these


class Rule(Protocol):
    """What backward asks for."""

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        """dX and dW."""


class Steps(Protocol):
    """The gradients of some rows at a time, as they become known; what dW needs of all of them is there at the end."""

    def split(self, rows: slice) -> None:
        """These rows, whose gradients are there now."""

    def input_gradient(self, rows: slice) -> Tensor:
        """dX of rows that have been split."""

    def weight_gradient(self) -> Tensor:
        """dW of all rows: the last that is asked for."""


class Vectors(NamedTuple):
    """Where some vectors lie in memory: each in pieces, if a layer stores them across."""

    channels: int  # in a group
    pieces: int
    length: int  # of a piece
    group_step: int  # from one group to the next
    channel_step: int
    piece_step: int


class Workspace:
    """What passes keep between them in one piece of memory, and those that fill it or read it.

    They work in float32 or float64 for weight vectors in groups; all memory is given by its address.
    """

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        vectors: Vectors,
        groups: int,
        convolution: bool,
        threads: int,
        doubles: int,
        *numbers: int,
    ) -> None:
        """`doubles` and `numbers` say how much memory is needed beside that for weight vectors."""
        self.program, self.dtype, self.vectors, self.groups = program, dtype, vectors, groups
        self.convolution, self.threads = convolution, threads
        self.size, self.count = dtype.itemsize, groups * vectors.channels
        self.plan = plan_of(program, dtype, convolution)
        registers = threads * (len(program.constants) + SPARE_REGISTERS) * STRIP
        self._counts = (FIELDS * self.count, groups, registers, *numbers)
        self._doubles = doubles + threads * (2 + self.count) + 1
        self.needed = self._doubles * 8 // self.size + sum(self._counts)
        self.bytes = self.needed * self.size

    def lay_out(self, address: int) -> None:
        """Say where the memory is."""
        # float64: whether the bias has drowned p, or what else was added; each thread's sums of this, of the norms of
        # its data vectors, and for the weight vectors; and what else was asked for
        self.drowned = address
        self.added = address + 8
        self.total_norm = self.added + 8 * self.threads
        self.by_weight = self.total_norm + 8 * self.threads
        self.doubles = self.by_weight + 8 * self.threads * self.count
        address += 8 * self._doubles
        self.numbers = []
        for count in self._counts:
            self.numbers.append(address)
            address += count * self.size
        self.table, self.longest, self.registers, *self.numbers = self.numbers
        self.weight_inverse = self.table + WEIGHT_INVERSE * self.count * self.size

    def weight_norms(self, weight: int) -> Phase:
        """The norms of the weight vectors, into their table."""
        value = self.table + WEIGHT_VALUE * self.count * self.size
        return self.norms(weight, self.vectors, self.count, value, self.weight_inverse, 0)

    def norms(self, memory: int, vectors: Vectors, count: int, value: int, inverse: int, total: int) -> Phase:
        """The norms of vectors, their inverses, and their sum."""
        kernel = passes().norms_of_vectors[self.size]
        return Phase(kernel, 0, count, (*vectors, memory, value, inverse, total))

    def weight_table(self, bias: int, bias_step: int) -> Phase:
        """What else is known of the weight vectors; 0: no bias."""
        limits = _limits(self.dtype, self.convolution).ctypes.data
        offsets, sums = (limits, bias, bias_step), (self.by_weight, self.threads, self.drowned)
        if not self.convolution:  # shared out as their norms were
            return Phase(passes().tabulate_rows[self.size], 0, self.count, (self.count, *offsets, self.table, *sums))
        integers = (self.vectors.channels, *offsets, self.table, self.longest, *sums)
        return Phase(passes().tabulate[self.size], self.groups - 1, self.groups, integers, waits=True)  # by one share

    def find_drowned(self, data_vectors: int, added: int = 0) -> Phase:
        """Whether the bias has drowned p in the output: once the norms of all vectors are known.

        Or, if there is an address where its sums are, what else was added.
        """
        integers = (self.count, data_vectors, self.table, self.total_norm, added, self.threads, self.drowned)
        return Phase(passes().find_drowned[self.size], 0, 1, integers, waits=True)

    def weight_multiples(self, weight: int, total: int, fresh: bool) -> Phase:
        """To dW, which lies as the weight does; or with `fresh`, as its beginning."""
        sums = (self.by_weight, self.threads, self.count)
        integers = (*self.vectors, weight, self.weight_inverse, *sums, total, fresh)
        return Phase(passes().add_along[self.size], 0, self.count, integers, waits=True)


class WrittenPasses(Workspace):
    """The passes of a rule for given shapes, written down once, with stand-ins for all memory.

    Python between a layer's native operations runs with cold caches: it costs a small layer more than the passes do.
    """

    @functools.cached_property
    def scores(self) -> dict[tuple[Part, ...], Score]:
        """Those that were asked for."""
        return {}

    @classmethod
    def of(cls, program: Program, *shapes: Any) -> Self:
        """Those for the arguments of `__init__`."""
        key = (cls, *shapes)
        found: Self | None = program.passes.get(key)
        if found is None:
            if len(program.passes) >= _REMEMBERED:  # as with sequences of any length
                program.passes.clear()
            found = program.passes[key] = cls(program, *shapes)
        return found

    def score(self, *parts: Part) -> Score:
        """These parts, in turn."""
        found = self.scores.get(parts)
        if found is None:
            found = self.scores[parts] = Score(*(phase for part in parts for phase in part(self)))
        return found


Part = Callable[[Any], list[Phase]]  # a method of the passes
_REMEMBERED = 1024  # shapes, for each product


class Loans:
    """The memory that a rule has borrowed."""

    def __init__(self) -> None:
        self.pieces: list[Tensor] = []

    def borrow(self, like: Tensor, count: int) -> Tensor:
        """Memory for so many numbers."""
        self.pieces.append(borrow(like, count))
        return self.pieces[-1]

    def give_back(self) -> None:
        """Nothing more will be asked of the rule."""
        give_back(*self.pieces)
        self.pieces.clear()

    def turned_for(self, program: Program, grad: Tensor, overwrite: bool = False) -> tuple[Tensor, Tensor]:
        """Memory for D∘g of ∂/∂w and ∂/∂x, or g itself where that is it; with `overwrite`, that of grad may be used."""
        weight_half, input_half = program.weight, program.input
        if program.same:
            turned = self._another(grad) if weight_half.writes and not overwrite else grad
            return turned, turned
        return self._another(grad) if weight_half.writes else grad, self._another(grad) if input_half.writes else grad

    def _another(self, grad: Tensor) -> Tensor:
        if grad.numel() * grad.element_size() < LARGE:
            return torch.empty_like(grad)
        return self.borrow(grad, grad.numel()).as_strided(grad.shape, grad.stride())


def float64_at(address: int) -> float:
    """The number in memory there."""
    return ctypes.c_double.from_address(address).value


def plan_of(program: Program, dtype: torch.dtype, convolution: bool) -> int:
    """Where the integers are by which passes know a program."""
    if (dtype, convolution) not in program.plans:
        size = torch.finfo(dtype).bits // 8
        does_more = len(program.steps) > 0 or program.asks_for_sin
        plan = [len(program.constants), len(program.steps), program.steps.ctypes.data, program.constants.ctypes.data]
        plan += [_limits(dtype, convolution).ctypes.data, program_passes().run[size].address if does_more else 0]
        plan += [program.asks_for_sin, program.same, program.is_pr]
        for half in (program.weight, program.input):
            plan += [half.length, half.direction, half.writes, half.has_sums]
        program.plans[dtype, convolution] = np.array(plan, dtype=np.int64)
    return int(program.plans[dtype, convolution].ctypes.data)


@functools.cache
def _limits(dtype: torch.dtype, convolution: bool) -> np.ndarray[Any, Any]:
    """The floor of sin² θ, eps, the smallest normal number and what is negligible beside it."""
    info = torch.finfo(dtype)
    floor = floor_of_sin_square(dtype, "cpu", convolution)
    limits = [floor, info.eps, info.smallest_normal, negligible_excess(dtype)]
    return np.array(limits, dtype=str(dtype).removeprefix("torch."))
