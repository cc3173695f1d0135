"""The gradients of a depthwise convolution by passes of its own, without the native backward: `passes.py`."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from prproduct.kernels.compiled import depthwise_moves, depthwise_passes, depthwise_split
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.convolution_rule import ConvolutionRule, format_of
from prproduct.kernels.depthwise.layout import AXES, images_together, layout
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import Gradients, Loans, Vectors, WrittenPasses, float64_at
from prproduct.kernels.scores import Phase, stand_in
from prproduct.kernels.threads import threads_for

# What a score is played with: memory by its address.
MEMORY, X, W, BIAS, P, GRAD, DX, DW = map(stand_in, range(8))

# Taps from which channels that are last in memory are worth moving: with 7×7, the general passes took 18 ms where these
# took 8 (2 images of 96 channels of 56², one thread; the native backward 10), with 5×5, 14 and 7; with 3×3 they do not.
_MANY_TAPS = 25


def is_depthwise(contraction: Convolution, input: Tensor, weight: Tensor, output: Tensor) -> bool:
    """Whether the passes here serve: every channel is a group, in planes, or worth being laid out in planes."""
    if contraction.groups != input.shape[1] or contraction.groups == 1 or contraction.transposed:
        return False
    return format_of(output) is torch.contiguous_format or math.prod(weight.shape[1:]) >= _MANY_TAPS


class Passes(WrittenPasses):
    """Those for one convolution of input and weight of given shapes, with stand-ins for all memory."""

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        contraction: Convolution,
        input: torch.Size,
        weight: torch.Size,
        output: torch.Size,
        threads: int,
    ) -> None:
        self.batch, groups, taps, windows = input[0], contraction.groups, math.prod(weight[2:]), math.prod(output[2:])
        channels, self.data_vectors = weight[0] // groups, self.batch * groups * windows
        images = images_together(self.batch, windows) if len(contraction.stride) < AXES else 1
        self.units = -(-self.batch // images) * groups
        settings = (contraction.stride, contraction.padding, contraction.dilation)
        sizes = tuple(input[2:]), tuple(output[2:]), tuple(weight[2:])
        self.layout = layout(dtype.itemsize, images, groups, *settings, *sizes)
        vectors = Vectors(channels, 1, taps, channels * taps, taps, 0)
        doubles, numbers = threads * weight[0] * (taps + 1), threads * int(self.layout[depthwise_moves().MEMORY])
        super().__init__(program, dtype, vectors, groups, True, threads, doubles, numbers)
        self.lay_out(MEMORY)
        self.by_tap, (self.work,) = self.doubles, self.numbers

    def measure(self) -> list[Phase]:
        """What is known of the weight vectors."""
        return [self.weight_norms(W), self.weight_table(0, 0)]

    def measure_with_biases(self) -> list[Phase]:
        return [self.weight_norms(W), self.weight_table(BIAS, 1)]

    def check(self) -> list[Phase]:
        """Whether the bias has drowned p: behind the planes, whose windows' norms say so."""
        return [self.find_drowned(self.data_vectors)]

    def planes(self, wants_input: bool, wants_weight: bool) -> list[Phase]:
        """dX, and the sums of which dW is made."""
        turns_input = wants_input and self.program.input.turn != 0.0
        turns_weight = wants_weight and self.program.weight.turn != 0.0
        what = (self.batch, self.groups, self.vectors.channels, wants_input, turns_input, turns_weight, self.size)
        of_weight = (W, self.table, self.longest, self.by_weight, self.by_tap)
        memory = (self.total_norm, self.registers, self.work, self.plan, self._split().address)
        integers = (*what, self.layout.ctypes.data, X, P, GRAD, DX, *of_weight, *memory)
        return [Phase(depthwise_passes().depthwise_planes[self.size], 0, self.units, integers, waits=True)]

    def weight_gradient(self) -> list[Phase]:
        """dW."""
        what = (self.count, self.vectors.length, self.threads, self.program.weight.has_sums)
        where = (W, self.weight_inverse, self.by_weight, self.by_tap, DW)
        return [Phase(depthwise_passes().weight_of_planes[self.size], 0, self.count, (*what, *where), waits=True)]

    def _split(self) -> Any:
        """What splits the pairs of a plane. `pr` needs only the shorter one, and waits for no other to be compiled."""
        passes, at_once = depthwise_split(), self.program.is_pr and self.vectors.channels == 1
        return (passes.split_at_once if at_once else passes.split_strips)[self.size]


# What comes behind the norms of the weight vectors for dX and dW, if wanted.
_THEN: dict[tuple[bool, bool], tuple[Any, ...]] = {
    (False, False): (functools.partial(Passes.planes, wants_input=False, wants_weight=False),),
    (True, False): (functools.partial(Passes.planes, wants_input=True, wants_weight=False),),
    (False, True): (functools.partial(Passes.planes, wants_input=False, wants_weight=True), Passes.weight_gradient),
    (True, True): (functools.partial(Passes.planes, wants_input=True, wants_weight=True), Passes.weight_gradient),
}


class DepthwiseRule:
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
        self.given = (contraction, program, input, weight, bias, output)
        self.bias = None if bias is None or output is None else bias.contiguous()

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        contraction, program, input, weight, _, output = self.given
        x, w, format = input.contiguous(), weight.contiguous(), format_of(grad if output is None else output)
        grad = grad.contiguous()
        threads = threads_for(max(input.numel(), grad.numel()), len(input) * contraction.groups)
        passes = Passes.of(program, input.dtype, contraction, input.shape, weight.shape, grad.shape, threads)
        dx, dw = torch.empty_like(x) if wants_input else None, torch.empty_like(w) if wants_weight else None
        results = [0 if t is None else t.data_ptr() for t in (dx, dw)]
        then, loans = _THEN[wants_input, wants_weight], Loans()
        memory = loans.borrow(x, passes.needed).data_ptr()

        def play(bias: int, output: Tensor, *parts: Any) -> bool:
            """Whether the bias has drowned p."""
            p = output.contiguous()
            where = (memory, x.data_ptr(), w.data_ptr(), bias, p.data_ptr(), grad.data_ptr(), *results)
            passes.score(*parts).play(threads, *where)
            return float64_at(memory + passes.drowned - MEMORY) != 0.0

        drowned = False
        if self.bias is not None and output is not None:
            # That is known when the norms of all windows are, and is mostly not so: then all has been done.
            drowned = play(self.bias.data_ptr(), output, Passes.measure_with_biases, *then, Passes.check)
        if self.bias is None or drowned:
            p = contraction.native(input, weight, None) if output is None or drowned else output
            play(0, p, Passes.measure, *then)
        loans.give_back()
        return None if dx is None else dx.contiguous(memory_format=format), dw

    def turned(self, grad: Tensor) -> Tensor:
        """D∘g, of ∂/∂w."""
        return ConvolutionRule(*self.given, None, grad).turned(grad)
