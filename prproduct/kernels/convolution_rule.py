"""The gradients of a convolution by the compiled passes: windows of the input with kernels.

Planes of an image and a group are done by themselves, in one pass. Where channels are last, all groups of an image lie
together, and are done together. As for linear layers, what follows from shapes alone is written down once (`Passes`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.compiled import channels_last_passes, convolution_passes
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import Gradients, Loans, Vectors, WrittenPasses, float64_at
from prproduct.kernels.scores import Phase, stand_in
from prproduct.kernels.tables import ASIDE, FIELDS, STRIP
from prproduct.kernels.threads import threads_for

_AXES = 3
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

# What a score is played with: memory by its address.
MEMORY, X, W, BIAS, P, GRAD, FOR_WEIGHT, FOR_INPUT, DX, DW, ADDEND, LAST_X, LAST_DX = map(stand_in, range(13))


class Passes(WrittenPasses):
    """Those for one convolution of input and weight of given shapes, with stand-ins for all memory.

    If they `lay_out` planes, the native backward between them gets and gives tensors with channels last.
    """

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        contraction: Convolution,
        input: torch.Size,
        weight: torch.Size,
        output: torch.Size,
        planes: bool,
        threads: int,
        lays_out: bool = False,
    ) -> None:
        groups, transposed = contraction.groups, contraction.transposed
        self.contraction, self.planes, self.in_channels = contraction, planes, input[1] // groups
        self.together, self.lays_out = 1 if planes else groups, lays_out
        self.units = units_of(contraction, input, planes)
        wide, narrow = (output[2:], input[2:]) if transposed else (input[2:], output[2:])
        sizes = tuple(wide), tuple(narrow), tuple(weight[2:])
        self.geometry = _geometry(contraction, self.together, dtype.itemsize, *sizes)
        self.places, windows = math.prod(input[2:]), math.prod(output[2:])
        self.data_vectors = input[0] * groups * windows
        memory = self.together * (2 * math.prod(map(max, wide, narrow)) + 3 * windows)
        vectors = _kernels(weight, groups, transposed)
        memory += ASIDE * vectors.channels if lays_out else 0
        tile = 0 if planes else (FIELDS + 1) * max(STRIP, groups * vectors.channels)
        numbers = (input[0] * groups * self.places, threads * memory, threads * tile)
        super().__init__(program, dtype, vectors, groups, True, threads, 0, *numbers)
        self.lay_out(MEMORY)
        self.coefficients, self.work, self.tiles = self.numbers

    def measure(self) -> list[Phase]:
        """What is known of the weight vectors."""
        return [self.weight_norms(W), self.weight_table(0, 0)]

    def measure_with_biases(self) -> list[Phase]:
        return [self.weight_norms(W), self.weight_table(BIAS, int(self.count > 1))]

    def check(self) -> list[Phase]:
        """Whether the bias has drowned p: behind the split, which finds the windows' norms."""
        return [self.find_drowned(self.data_vectors)]

    def check_total(self) -> list[Phase]:
        """The same of the bias and of what else was added."""
        return [self.find_drowned(self.data_vectors, self.added)]

    def split(self, addend: int = 0) -> list[Phase]:
        """`splitting.split`, and the coefficients of the correction along the input."""
        what = (self.contraction.transposed, self.groups, self.in_channels, self.vectors.channels)
        where = (X, P, GRAD, FOR_WEIGHT, FOR_INPUT, self.table, self.by_weight, self.total_norm, self.coefficients)
        memory = (self.registers, self.work) if self.planes else (self.registers, self.work, self.tiles)
        split = convolution_passes().split_planes if self.planes else channels_last_passes().split_last
        last = (LAST_X if self.lays_out else 0,) if self.planes else ()
        integers = (*what, self.geometry.ctypes.data, *where, *memory, self.plan, addend, self.added, *last)
        return [Phase(split[self.size], 0, self.units, integers, waits=True)]

    def split_total(self) -> list[Phase]:
        """The same of an output to which something was added."""
        return self.split(ADDEND)

    def along_weight(self) -> list[Phase]:
        """What is to be added to dW."""
        return [self.weight_multiples(W, DW, fresh=False)] if self.program.weight.has_sums else []

    def along_input(self) -> list[Phase]:
        """What is to be added to dX."""
        if not self.program.input.has_sums:
            return []
        add = convolution_passes().add_along_planes if self.planes else channels_last_passes().add_along_last
        last = (LAST_DX if self.lays_out else 0,) if self.planes else ()
        where = (self.groups, self.in_channels, self.places, X, self.coefficients, self.longest, DX, *last)
        return [Phase(add[self.size], 0, self.units, where)]


class ConvolutionRule:
    """`rules.Rule`."""

    def __init__(
        self,
        contraction: Convolution,
        program: Program,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor | None,
        addend: Tensor | None,
        grad: Tensor,
    ) -> None:
        self.contraction, self.program, self.input, self.weight = contraction, program, input, weight
        self.format = format_of(grad if output is None else output)
        planes = self.format is torch.contiguous_format
        self.x = input.contiguous(memory_format=self.format)
        as_it_is = _is_dense_by_first_axis(weight) and not contraction.transposed
        self.w = weight if as_it_is else weight.contiguous()
        threads = threads_for(max(input.numel(), grad.numel()), units_of(contraction, input.shape, planes))
        shapes = (contraction, input.shape, weight.shape, grad.shape, planes)
        self.passes = Passes.of(program, input.dtype, *shapes, threads)
        self.loans = Loans()
        self.memory = self.loans.borrow(self.x, self.passes.needed).data_ptr()
        self.bias = None if bias is None or output is None else bias.contiguous()
        self.addend = None if addend is None else addend.contiguous(memory_format=self.format)
        self._read_off(contraction.native(input, weight, None) if output is None else output)

    def _read_off(self, output: Tensor) -> None:
        self.p = output.contiguous(memory_format=self.format)

    def _split(self, grad: Tensor, for_weight: Tensor, for_input: Tensor) -> None:
        """Again without what was added to p, if that turns out to have drowned it, which is rare."""
        pairs = (grad.data_ptr(), for_weight.data_ptr(), for_input.data_ptr())
        if self.bias is not None or self.addend is not None:
            measure = Passes.measure if self.bias is None else Passes.measure_with_biases
            split = (Passes.split, Passes.check) if self.addend is None else (Passes.split_total, Passes.check_total)
            bias, addend = (0 if t is None else t.data_ptr() for t in (self.bias, self.addend))
            self._play((measure, *split), bias, *pairs, 0, 0, addend)
            if float64_at(self.memory + self.passes.drowned - MEMORY) == 0.0:
                return
            self._read_off(self.contraction.native(self.input, self.weight, None))
        self._play((Passes.measure, Passes.split), 0, *pairs)

    def _play(self, parts: tuple[Any, ...], bias: int, *given: int) -> None:
        where = (self.memory, self.x.data_ptr(), self.w.data_ptr(), bias, self.p.data_ptr())
        self.passes.score(*parts).play(self.passes.threads, *where, *given)

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        grad = grad.contiguous(memory_format=self.format)
        for_weight, for_input = self.loans.turned_for(self.program, grad)
        self._split(grad, for_weight, for_input)
        weight_half, input_half = self.program.weight, self.program.input
        needs_weight, needs_input = wants_weight and weight_half.turn != 0.0, wants_input and input_half.turn != 0.0
        backward = self.contraction.native_backward
        if self.program.same:
            dx, dw = backward(for_input, self.x, self.weight, needs_input, needs_weight)
        else:
            dx = backward(for_input, self.x, self.weight, needs_input, False)[0]
            dw = backward(for_weight, self.x, self.weight, False, needs_weight)[1]
        parts = []
        if wants_input:
            dx = torch.zeros_like(self.x) if dx is None else dx.contiguous(memory_format=self.format)
            parts.append(Passes.along_input)
        if wants_weight:
            dw = torch.zeros_like(self.w) if dw is None else dw
            if weight_half.has_sums and dw.stride() != self.w.stride():
                dw = torch.empty_like(self.w).copy_(dw)
            parts.append(Passes.along_weight)
        self._play(tuple(parts), 0, 0, 0, 0, *(0 if t is None else t.data_ptr() for t in (dx, dw)))
        self.loans.give_back()
        return dx, dw

    def turned(self, grad: Tensor) -> Tensor:
        """D∘g, of ∂/∂w."""
        grad = grad.contiguous(memory_format=self.format)
        turned = torch.empty_like(grad)
        self._split(grad, turned, turned)
        self.loans.give_back()
        return turned


def units_of(contraction: Convolution, input: torch.Size, planes: bool) -> int:
    """What is shared out: images, or with planes, images and groups."""
    return input[0] * contraction.groups if planes else input[0]


def format_of(output: Tensor) -> torch.memory_format:
    """How output, gradient and input are to lie."""
    last = _CHANNELS_LAST.get(output.dim())
    if last is None or output.is_contiguous() or not output.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def _is_dense_by_first_axis(weight: Tensor) -> bool:
    """Whether every kernel is one piece of memory, in whatever order."""
    last = _CHANNELS_LAST.get(weight.dim())
    return weight.is_contiguous() or (last is not None and weight.is_contiguous(memory_format=last))


def _kernels(weight: torch.Size, groups: int, transposed: bool) -> Vectors:
    size = math.prod(weight[2:])
    if transposed:  # (in, out/groups, *kernel)
        inputs, channels = weight[0] // groups, weight[1]
        return Vectors(channels, inputs, size, inputs * channels * size, size, channels * size)
    channels, length = weight[0] // groups, weight[1] * size
    return Vectors(channels, 1, length, channels * length, length, 0)


@functools.lru_cache(maxsize=256)
def _geometry(contraction: Convolution, together: int, size: int, *sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The integers by which passes know where windows lie: `convolution_passes.GEOMETRY`."""
    settings = (*sizes, contraction.stride, contraction.padding, contraction.dilation)
    missing = _AXES - len(contraction.stride)
    axes = [(*(neutral,) * missing, *given) for given, neutral in zip(settings, (1, 1, 1, 1, 0, 1), strict=True)]
    trivial = [window == [1, 1, 0] and wide == narrow for wide, narrow, *window, _ in zip(*axes, strict=True)]
    half = together * math.prod(map(max, *sizes[:2]))
    tail = (_AXES - sum(trivial), half, convolution_passes().over_windows[size].address)
    return np.array([*(number for axis in axes for number in axis), *tail], dtype=np.int64)
