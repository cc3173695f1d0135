"""The gradients of a convolution by the compiled passes: windows of the input with kernels.

Planes of an image and a group are done by themselves, in one pass. Where channels are last, all groups of an image lie
together: the norms of their windows are computed first, then rows of pairs are split as in a linear layer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.compiled import convolution_passes, passes, share_out, threads_for
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import CompiledRule, Gradients, Vectors

_AXES = 3
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class ConvolutionRule(CompiledRule):
    """`rules.Rule`."""

    def __init__(
        self,
        contraction: Convolution,
        program: Program,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor | None,
        grad: Tensor,
    ) -> None:
        groups, transposed = contraction.groups, contraction.transposed
        self.contraction, self.weight = contraction, weight
        self.format = _format(grad if output is None else output, grad.shape[1] // groups)
        self.planes = self.format is torch.contiguous_format
        self.x = input.contiguous(memory_format=self.format)
        self.together = 1 if self.planes else groups
        self.units = input.shape[0] * groups // self.together
        threads = threads_for(max(input.numel(), grad.numel()), self.units)
        wide, narrow = (grad.shape[2:], input.shape[2:]) if transposed else (input.shape[2:], grad.shape[2:])
        sizes = tuple(wide), tuple(narrow), tuple(weight.shape[2:])
        self.geometry = _geometry(contraction, self.together, weight.element_size(), *sizes)
        self.places, self.windows = math.prod(input.shape[2:]), math.prod(grad.shape[2:])
        memory = 2 * self.together * math.prod(map(max, wide, narrow)) + 3 * self.windows
        data_vectors = input.shape[0] * groups * self.windows
        rows = 0 if self.planes else data_vectors
        w = weight if _is_dense_by_first_axis(weight) and not transposed else weight.contiguous()
        vectors = _kernels(weight, groups, transposed)
        numbers = (input.shape[0] * groups * self.places, threads * memory, threads * w.shape[0], rows, rows)
        super().__init__(program, w, vectors, groups, True, threads, rows, *numbers)
        self.coefficients, self.work, self.partial, self.norm, self.inverse = self.numbers
        bias = None if output is None else bias
        if bias is not None or not self.planes:
            self._norms_of_windows()
        if self.drowned_in(bias, data_vectors) or output is None:
            output = contraction.native(input, weight, None)
            self.drowned_in(None, data_vectors)
        self.p = output.contiguous(memory_format=self.format)

    def _norms_of_windows(self) -> None:
        """Their sum, and where channels are last, all of them."""
        what = (self.contraction.transposed, self.together, self.x.shape[1] // self.groups, self.geometry.ctypes.data)
        into = (self.x.data_ptr(), self.work, self.norm, self.inverse, self.total_norm, self.planes)
        share_out(convolution_passes().window_norms[self.size], self.threads, 0, self.units, *what, *into)

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        grad = grad.contiguous(memory_format=self.format)
        for_weight, for_input = self.turned_for(grad)
        self._split(tuple(t.data_ptr() for t in (self.p, grad, for_weight, for_input)))
        weight_half, input_half = self.program.weight, self.program.input
        needs_weight, needs_input = wants_weight and weight_half.turn != 0.0, wants_input and input_half.turn != 0.0
        backward = self.contraction.native_backward
        if self.program.same:
            grad_input, grad_weight = backward(for_input, self.x, self.weight, needs_input, needs_weight)
        else:
            grad_input = backward(for_input, self.x, self.weight, needs_input, False)[0]
            grad_weight = backward(for_weight, self.x, self.weight, False, needs_weight)[1]
        if wants_weight:
            grad_weight = torch.zeros_like(self.weight_memory) if grad_weight is None else grad_weight
            grad_weight = self._with_weight(grad_weight) if weight_half.has_sums else grad_weight
        if wants_input:
            grad_input = torch.zeros_like(self.x) if grad_input is None else grad_input
            grad_input = self._with_input(grad_input) if input_half.has_sums else grad_input
        self.finish()
        return grad_input, grad_weight

    def _split(self, pairs: tuple[int, ...]) -> None:
        transposed, channels, in_channels = (
            self.contraction.transposed,
            self.vectors.channels,
            self.x.shape[1] // self.groups,
        )
        if self.planes:
            what = (transposed, self.groups, in_channels, channels, self.geometry.ctypes.data, self.x.data_ptr(), *pairs)
            into = (self.table, self.by_weight, self.coefficients, self.registers, self.work, self.plan)
            share_out(convolution_passes().split_planes[self.size], self.threads, 0, self.units, *what, *into)
            return
        norms = (self.table, self.norm, self.inverse, self.by_weight, self.doubles)
        work = (self.registers, self.partial, self.plan)
        rows = self.x.shape[0] * self.windows
        share_out(passes().split_rows[self.size], self.threads, 0, rows, self.groups, channels, *pairs, *norms, *work)
        what = (transposed, self.groups, self.geometry.ctypes.data)
        sums = (self.doubles, self.inverse, self.work, self.coefficients)
        share_out(convolution_passes().window_sums_back[self.size], self.threads, 0, self.units, *what, *sums)

    def _with_weight(self, total: Tensor) -> Tensor:
        if total.stride() != self.weight_memory.stride():
            total = torch.empty_like(self.weight_memory).copy_(total)
        self.add_along_weight(total)
        return total

    def _with_input(self, total: Tensor) -> Tensor:
        total = total.contiguous(memory_format=self.format)
        add = convolution_passes().add_along_planes if self.planes else convolution_passes().add_along_rows
        where = (
            self.groups,
            total.shape[1] // self.groups,
            self.places,
            self.x.data_ptr(),
            self.coefficients,
            self.longest,
        )
        threads = threads_for(total.numel(), self.units)
        share_out(add[self.size], threads, 0, self.units, *where, total.data_ptr())
        return total


def _format(output: Tensor, channels: int) -> torch.memory_format:
    """How output, gradient and input are to lie. Strips of a group's channels must not be too short to be worth it."""
    last = _CHANNELS_LAST.get(output.dim())
    if channels < 8 or last is None or output.is_contiguous() or not output.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def _is_dense_by_first_axis(weight: Tensor) -> bool:
    """Whether every kernel is one piece of memory, in whatever order."""
    last = _CHANNELS_LAST.get(weight.dim())
    return weight.is_contiguous() or (last is not None and weight.is_contiguous(memory_format=last))


def _kernels(weight: Tensor, groups: int, transposed: bool) -> Vectors:
    size = math.prod(weight.shape[2:])
    if transposed:  # (in, out/groups, *kernel)
        inputs, channels = len(weight) // groups, weight.shape[1]
        return Vectors(channels, inputs, size, inputs * channels * size, size, channels * size)
    channels, length = len(weight) // groups, weight.shape[1] * size
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
