"""The gradients of a product by the compiled passes: what both kinds of layers share.

A rule holds input and weight, the norms of their vectors and p; for a gradient of the output it gives dX and dW:

    split        one pass over p and g writes D∘g, and adds up a number for every weight vector and every data vector
    native       torch's own backward, of D∘g
    add along    dW and dX get their multiple of each weight vector and each data vector

`autograd.GradientRule` is the rule in plain torch, `linear_rule.py` and `convolution_rule.py` are the compiled ones.
What these keep between the steps is one piece of memory, and all memory is handed to the passes by address.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.compiled import LARGE, Phase, borrow, give_back, passes
from prproduct.kernels.pairs import floor_of_sin_square, negligible_excess
from prproduct.kernels.programs import Program

Gradients = tuple[Tensor | None, Tensor | None]


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


class CompiledRule:
    """The weight vectors, the program, and the memory of a rule."""

    def __init__(
        self,
        program: Program,
        weight: Tensor,
        vectors: Vectors,
        groups: int,
        convolution: bool,
        threads: int,
        doubles: int,
        *numbers: int,
    ) -> None:
        """`weight` is dense; `doubles` and `numbers` say how much memory is needed beside that for weight vectors."""
        self.program, self.weight_memory, self.vectors, self.groups = program, weight, vectors, groups
        self.convolution, self.threads = convolution, threads
        self.size, self.count = weight.element_size(), groups * vectors.channels
        self.plan = plan_of(program, weight.dtype, convolution)
        registers = threads * (len(program.constants) + passes().SPARE_REGISTERS) * passes().STRIP
        counts = (passes().FIELDS * self.count, groups, registers, *numbers)
        doubles += threads * (1 + self.count) + 1
        self.loans = [borrow(weight, doubles * 8 // self.size + sum(counts))]
        # float64: the norms of each thread's data vectors and whether the bias has drowned p; each thread's sums for
        # the weight vectors; and what else was asked for
        self.total_norm = address = self.loans[0].data_ptr()
        self.by_weight = address + 8 * (threads + 1)
        self.doubles = self.by_weight + 8 * threads * self.count
        address += 8 * doubles
        self.numbers = []
        for count in counts:
            self.numbers.append(address)
            address += count * self.size
        self.table, self.longest, self.registers, *self.numbers = self.numbers
        self.weight_inverse = self.table + passes().WEIGHT_INVERSE * self.count * self.size
        self.drowned = self.total_norm + 8 * threads

    def norms_of_weight(self) -> Phase:
        """The norms of the weight vectors, into their table."""
        value = self.table + passes().WEIGHT_VALUE * self.count * self.size
        return self.norms_of(self.weight_memory, self.vectors, self.count, value, self.weight_inverse, 0)

    def norms_of(self, t: Tensor, vectors: Vectors, count: int, value: int, inverse: int, total: int) -> Phase:
        """The norms of vectors, their inverses, and their sum."""
        kernel = passes().norms_of_vectors[self.size]
        return Phase(kernel, 0, count, (*vectors, t.data_ptr(), value, inverse, total))

    def tabulate(self, bias: Tensor | None, data_vectors: int) -> Phase:
        """What else is known of the weight vectors, and whether the bias has drowned p in the output."""
        self.bias = None if bias is None else bias.contiguous()
        address, step = (0, 0) if self.bias is None else (self.bias.data_ptr(), int(self.bias.numel() > 1))
        limits = _limits(self.weight_memory.dtype, self.convolution).ctypes.data
        vectors = (self.vectors.channels, self.convolution, limits)
        memory = (self.table, self.longest, self.by_weight, self.total_norm, self.threads)
        integers = (*vectors, address, step, *memory, data_vectors)
        return Phase(passes().tabulate[self.size], 0, self.groups, integers, waits=True)

    @property
    def is_drowned(self) -> bool:
        """Whether the bias has drowned p, after `tabulate`."""
        return ctypes.c_double.from_address(self.drowned).value != 0.0

    def turned_for(self, grad: Tensor, overwrite: bool = False) -> tuple[Tensor, Tensor]:
        """Memory for D∘g of ∂/∂w and ∂/∂x, or g itself where that is it; with `overwrite`, that of grad may be used."""
        weight_half, input_half = self.program.weight, self.program.input
        if self.program.same:
            turned = self._another(grad) if weight_half.writes and not overwrite else grad
            return turned, turned
        return self._another(grad) if weight_half.writes else grad, self._another(grad) if input_half.writes else grad

    def _another(self, grad: Tensor) -> Tensor:
        if grad.numel() * self.size < LARGE:
            return torch.empty_like(grad)
        self.loans.append(borrow(grad, grad.numel()))
        return self.loans[-1].as_strided(grad.shape, grad.stride())

    def finish(self) -> None:
        """Nothing more will be asked of the rule."""
        give_back(*self.loans)
        self.loans.clear()

    def along_weight(self, total: Tensor, fresh: bool) -> Phase:
        """To dW, which lies as the weight does; or with `fresh`, as its beginning."""
        where = (*self.vectors, self.weight_memory.data_ptr(), self.weight_inverse)
        sums = (self.by_weight, self.threads, self.count)
        integers = (*where, *sums, total.data_ptr(), fresh)
        return Phase(passes().add_along[self.size], 0, self.count, integers, waits=True)


def plan_of(program: Program, dtype: torch.dtype, convolution: bool) -> int:
    """Where the integers are by which passes know a program."""
    if (dtype, convolution) not in program.plans:
        size = torch.finfo(dtype).bits // 8
        does_more = len(program.steps) > 0 or program.asks_for_sin
        plan = [len(program.constants), len(program.steps), program.steps.ctypes.data, program.constants.ctypes.data]
        plan += [_limits(dtype, convolution).ctypes.data, passes().run[size].address if does_more else 0]
        plan += [program.asks_for_sin, program.same]
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
