"""The passes of a convolution of single places (1×1), which do the native backward's products, too."""

from __future__ import annotations

import math

import torch

from prproduct.kernels.blas import gemm
from prproduct.kernels.compiled import pointwise_passes
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.convolution_rule import ADDEND, BIAS, DW, DX, GRAD, MEMORY, P, W, X
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import Vectors, Workspace
from prproduct.kernels.scores import Phase, Score
from prproduct.kernels.tables import ASIDE, STRIP, STRIP_ROWS
from prproduct.kernels.threads import openmp, threads_for


def serves(contraction: Convolution, input: torch.Size, weight: torch.Size, dtype: torch.dtype) -> bool:
    """Whether passes can do all, and are faster so: strips are short, and large weights are read anew for each.

    Of a step, 24→48 channels win 35 hundredths, 204→48 win 27; 128→512 win none, and 512→2048 would lose as many. All
    of torch's threads have to have as much to do.
    """
    small = weight.numel() <= _SMALL and contraction.is_pointwise(weight)
    if not small or openmp() is None or gemm(dtype.itemsize) == 0:
        return False
    pieces, threads = pieces_of(input), threads_for(input.numel(), input.numel())
    return pieces >= 4 * threads or pieces % threads == 0


def pieces_of(input: torch.Size) -> int:
    """What is shared out: strips of images."""
    return input[0] * -(-math.prod(input[2:]) // STRIP)


_SMALL = 2**15  # weights


class Passes(Workspace):
    """Those for planes of given shapes, with stand-ins for all memory."""

    def __init__(
        self, program: Program, dtype: torch.dtype, input: torch.Size, weight: torch.Size, threads: int
    ) -> None:
        self.images, self.in_channels, self.places = input[0], input[1], math.prod(input[2:])
        self.pieces = pieces_of(input)
        vectors = Vectors(weight[0], 1, self.in_channels, 0, self.in_channels, 0)
        strips, self.weights = threads * (STRIP_ROWS + weight[0]) * ASIDE, weight.numel()
        super().__init__(program, dtype, vectors, 1, True, threads, 0, strips, threads * self.weights)
        self.lay_out(MEMORY)
        self.strips, self.partial = self.numbers

    def score(self, wanted: tuple[bool, bool], biased: bool, added: bool) -> Score:
        """dX and dW, as wanted, of an output with biases or something else added; and whether that has drowned p."""
        what = (gemm(self.size), self.in_channels, self.count, self.places)
        results = (DX if wanted[0] else 0, self.partial if wanted[1] else 0)
        known = (self.table, self.by_weight, self.total_norm, self.longest)
        memory = (self.registers, self.strips, self.plan, ADDEND if added else 0, self.added)
        integers = (*what, X, W, P, GRAD, *results, *known, *memory)
        phases = [self.weight_norms(W), self.weight_table(BIAS if biased else 0, int(biased and self.count > 1))]
        phases.append(Phase(pointwise_passes().pointwise_planes[self.size], 0, self.pieces, integers, waits=True))
        if wanted[1]:
            shares = (self.weights, self.threads, self.partial, DW)
            phases.append(Phase(pointwise_passes().add_up_shares[self.size], 0, self.weights, shares, waits=True))
            phases.append(self.weight_multiples(W, DW, fresh=False))
        if biased or added:
            phases.append(self.find_drowned(self.images * self.places, self.added if added else 0))
        return Score(*phases)
