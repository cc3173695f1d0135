"""The gradients of a linear layer by the compiled passes: rows of the input with rows of the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from prproduct.kernels.compiled import passes, share_out, threads_for
from prproduct.kernels.contractions import Linear, as_rows
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import CompiledRule, Gradients, Vectors


class LinearRule(CompiledRule):
    """`rules.Rule`, for all rows at once or stepwise."""

    def __init__(
        self,
        contraction: Linear,
        program: Program,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor | None,
    ) -> None:
        """`bias` has one number, or one for each row of the weight."""
        self.contraction, self.input, self.weight = contraction, input, weight
        self.x, w = as_rows(input).contiguous(), (weight if weight.dim() == 2 else weight[None]).contiguous()
        (rows, columns), channels = self.x.shape, w.shape[0]
        threads = threads_for(rows * max(columns, channels), rows)
        steps = (0, columns, 0)
        vectors, self.data_vectors = Vectors(channels, 1, columns, *steps), Vectors(rows, 1, columns, *steps)
        super().__init__(program, w, vectors, 1, False, threads, rows, rows, rows, threads * channels)
        self.by_input = self.doubles
        norm, self.inverse, partial = self.numbers
        self.norms_of(self.x, self.data_vectors, rows, threads, norm, self.inverse, self.total_norm)
        if self.drowned_in(None if output is None else bias, rows) or output is None:
            output = contraction.native(input, weight, None)
            self.drowned_in(None, rows)
        self.p = contraction.as_pairs(output).contiguous()
        norms = (self.table, norm, self.inverse, self.by_weight, self.by_input)
        self.split_arguments = (*norms, self.registers, partial, self.plan)

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool, overwrite: bool = False) -> Gradients:
        """dX and dW; with `overwrite`, the memory of grad may be used."""
        steps = self.stepwise(self.contraction.as_pairs(grad), overwrite)
        everything = slice(0, self.p.shape[0])
        steps.split(everything)
        of_input = like(steps.input_gradient(everything), self.input) if wants_input else None
        of_weight = steps.weight_gradient() if wants_weight else None
        self.finish()
        return of_input, of_weight

    def stepwise(self, grad: Tensor, overwrite: bool = False) -> LinearSteps:
        """For rows of the gradient as they become known."""
        return LinearSteps(self, grad, overwrite)


class LinearSteps:
    """`rules.Steps`."""

    def __init__(self, rule: LinearRule, grad: Tensor, overwrite: bool) -> None:
        self.rule, self.grad = rule, grad.contiguous()
        self.for_weight, self.for_input = rule.turned_for(self.grad, overwrite)
        pairs = tuple(t.data_ptr() for t in (rule.p, self.grad, self.for_weight, self.for_input))
        self.arguments = (1, rule.count, *pairs, *rule.split_arguments)

    def split(self, rows: slice) -> None:
        count = rows.stop - rows.start
        threads = min(self.rule.threads, threads_for(count * self.rule.count, count))
        share_out(passes().split_rows[self.rule.size], threads, rows.start, rows.stop, *self.arguments)

    def input_gradient(self, rows: slice) -> Tensor:
        rule, half, count = self.rule, self.rule.program.input, rows.stop - rows.start
        columns = rule.data_vectors.length
        if half.turn == 0.0:
            result = rule.x.new_zeros(count, columns)
        else:
            turned = self.for_input if count == self.for_input.shape[0] else self.for_input[rows]
            result = turned.mm(rule.weight_memory)  # (rows, out) @ (out, in)
        if half.has_sums:
            # The pass counts from the first of all rows.
            start = result.data_ptr() - rows.start * columns * rule.size
            where = (*rule.data_vectors, rule.x.data_ptr(), rule.inverse, rule.by_input, 1, 0, start)
            threads = threads_for(result.numel(), count)
            share_out(passes().add_along[rule.size], threads, rows.start, rows.stop, *where)
        return result

    def weight_gradient(self) -> Tensor:
        rule, half = self.rule, self.rule.program.weight
        # (out, rows) @ (rows, in)
        result = torch.zeros_like(rule.weight_memory) if half.turn == 0.0 else self.for_weight.t().mm(rule.x)
        if half.has_sums:
            rule.add_along_weight(result)
        rule.finish()
        return like(result, rule.weight)


def like(t: Tensor, other: Tensor) -> Tensor:
    """In the other's shape; a view that changes nothing would cost as much as a small kernel."""
    return t if t.dim() == other.dim() else t.view(other.shape)
