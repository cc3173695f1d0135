"""The gradients of a product by the compiled passes: what both kinds of layers share.

A rule holds input and weight, the norms of their vectors and p; for a gradient of the output it gives dX and dW:

    split        one pass over p and g writes D∘g, and adds up a number for every weight vector and every data vector
    native       torch's own backward, of D∘g
    add along    dW and dX get their multiple of each weight vector and each data vector

`autograd.GradientRule` is the rule in plain torch, `linear_rule.py` and `convolution_rule.py` are the compiled ones.
What these keep between the steps is one piece of memory, and all memory is handed to the passes by address.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from prproduct.kernels.compiled import LARGE, borrow, give_back, one_of, passes, share_out, threads_for
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
    steps: tuple[int, int, int]  # from one group, channel and piece to the next


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
        self.one, self.size, self.count = one_of(weight), weight.element_size(), groups * vectors.channels
        self.smallest, floor, eps = _limits(weight.dtype, convolution)
        self.rule = (*program.for_passes, floor, eps if program.asks_for_sin else None, self.one)
        registers = threads * (len(program.constants) + 1) * passes().STRIP
        counts = (passes().FIELDS * self.count, groups, registers, *numbers)
        doubles += threads * (1 + self.count)
        self.loans = [borrow(weight, doubles * 8 // self.size + sum(counts))]
        # float64: the norms of each thread's data vectors, its sums for the weight vectors, and what else was asked for
        self.total_norm = address = self.loans[0].data_ptr()
        self.by_weight = address + 8 * threads
        self.doubles = self.by_weight + 8 * threads * self.count
        address += 8 * doubles
        self.numbers = []
        for count in counts:
            self.numbers.append(address)
            address += count * self.size
        self.table, self.longest, self.registers, *self.numbers = self.numbers
        self.weight_inverse = self.table + passes().WEIGHT_INVERSE * self.count * self.size
        value = self.table + passes().WEIGHT_VALUE * self.count * self.size
        self.norms_of(weight, vectors, self.count, 1, value, self.weight_inverse, 0)

    def norms_of(
        self, t: Tensor, vectors: Vectors, count: int, threads: int, value: int, inverse: int, total: int
    ) -> None:
        """The norms of vectors, their inverses, and their sum."""
        where = (*vectors, t.data_ptr(), value, inverse, total)
        share_out(passes().norms_of_vectors, threads, 0, count, *where, self.one)

    def drowned_in(self, bias: Tensor | None, data_vectors: int) -> bool:
        """Fill in what is known of the weight vectors; whether the bias has drowned p in the output."""
        bias = None if bias is None else bias.contiguous()
        address, step = (0, 0) if bias is None else (bias.data_ptr(), int(bias.numel() > 1))
        vectors = (self.groups, self.vectors.channels, self.convolution, *self.smallest)
        memory = (self.table, self.longest, self.by_weight, self.total_norm, self.threads)
        return passes().tabulate(*vectors, address, step, *memory, data_vectors, self.one)

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

    def add_along_weight(self, total: Tensor) -> None:
        """To dW, which lies as the weight does."""
        threads = threads_for(total.numel(), self.count)
        where = (*self.vectors, self.weight_memory.data_ptr(), self.weight_inverse)
        sums = (self.by_weight, self.threads, self.count)
        share_out(passes().add_along, threads, 0, self.count, *where, *sums, total.data_ptr(), self.one)


@functools.cache
def _limits(dtype: torch.dtype, convolution: bool) -> tuple[tuple[Any, Any], Any, Any]:
    """The smallest normal number and what is negligible beside it, the floor of sin² θ, and eps."""
    info, one = torch.finfo(dtype), one_of(torch.empty(0, dtype=dtype))
    smallest = one * info.smallest_normal, one * negligible_excess(dtype)
    return smallest, one * floor_of_sin_square(dtype, "cpu", convolution), one * info.eps
