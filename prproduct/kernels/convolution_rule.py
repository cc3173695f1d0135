"""The gradients of a convolution by the compiled passes: windows of the input with kernels.

Planes of an image and a group are done by themselves, in one pass. Where channels are last, all groups of an image lie
together, and are done together.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.compiled import (
    channels_last_passes,
    convolution_passes,
    in_turn,
    passes,
    share_out,
    threads_for,
)
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
        self.format = _format(grad if output is None else output)
        self.planes = self.format is torch.contiguous_format
        self.x = input.contiguous(memory_format=self.format)
        self.together = 1 if self.planes else groups
        self.units = input.shape[0] * groups // self.together
        threads = threads_for(max(input.numel(), grad.numel()), self.units)
        wide, narrow = (grad.shape[2:], input.shape[2:]) if transposed else (input.shape[2:], grad.shape[2:])
        sizes = tuple(wide), tuple(narrow), tuple(weight.shape[2:])
        self.geometry = _geometry(contraction, self.together, weight.element_size(), *sizes)
        self.places, self.windows = math.prod(input.shape[2:]), math.prod(grad.shape[2:])
        memory = self.together * (2 * math.prod(map(max, wide, narrow)) + 3 * self.windows)
        data_vectors = input.shape[0] * groups * self.windows
        w = weight if _is_dense_by_first_axis(weight) and not transposed else weight.contiguous()
        vectors = _kernels(weight, groups, transposed)
        tile = 0 if self.planes else (passes().FIELDS + 1) * max(passes().STRIP, groups * vectors.channels)
        numbers = (input.shape[0] * groups * self.places, threads * memory, threads * tile)
        super().__init__(program, w, vectors, groups, True, threads, 0, *numbers)
        self.coefficients, self.work, self.tiles = self.numbers
        self._measure(None if output is None else bias, data_vectors)
        if output is None or self.is_drowned:
            output = contraction.native(input, weight, None)
            self._measure(None, data_vectors)
        self.p = output.contiguous(memory_format=self.format)

    def _measure(self, bias: Tensor | None, data_vectors: int) -> None:
        """What is known of the weight vectors; for a bias, the sum of the windows' norms is needed."""
        if bias is not None:
            what = (self.planes, self.contraction.transposed, self.together, self.x.shape[1] // self.groups)
            where = (self.geometry.ctypes.data, self.x.data_ptr(), self.work, self.total_norm)
            share_out(convolution_passes().window_norms[self.size], self.threads, 0, self.units, *what, *where)
        in_turn(1, self.norms_of_weight(), self.tabulate(bias, data_vectors))

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

    def turned(self, grad: Tensor) -> Tensor:
        """D∘g, of ∂/∂w."""
        grad = grad.contiguous(memory_format=self.format)
        turned = torch.empty_like(grad)
        self._split((self.p.data_ptr(), grad.data_ptr(), turned.data_ptr(), turned.data_ptr()))
        self.finish()
        return turned

    def _split(self, pairs: tuple[int, ...]) -> None:
        in_channels, channels = self.x.shape[1] // self.groups, self.vectors.channels
        what = (self.contraction.transposed, self.groups, in_channels, channels)
        where = (self.geometry.ctypes.data, self.x.data_ptr(), *pairs, self.table, self.by_weight, self.coefficients)
        memory = (self.registers, self.work) if self.planes else (self.registers, self.work, self.tiles)
        split = convolution_passes().split_planes if self.planes else channels_last_passes().split_last
        share_out(split[self.size], self.threads, 0, self.units, *what, *where, *memory, self.plan)

    def _with_weight(self, total: Tensor) -> Tensor:
        if total.stride() != self.weight_memory.stride():
            total = torch.empty_like(self.weight_memory).copy_(total)
        in_turn(threads_for(total.numel(), self.count), self.along_weight(total, fresh=False))
        return total

    def _with_input(self, total: Tensor) -> Tensor:
        total = total.contiguous(memory_format=self.format)
        add = convolution_passes().add_along_planes if self.planes else channels_last_passes().add_along_last
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


def _format(output: Tensor) -> torch.memory_format:
    """How output, gradient and input are to lie."""
    last = _CHANNELS_LAST.get(output.dim())
    if last is None or output.is_contiguous() or not output.is_contiguous(memory_format=last):
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
