"""The gradients of a linear layer by the compiled passes: rows of the input with rows of the weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from prproduct.kernels.compiled import Phase, in_turn, passes, threads_for
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
        threads = threads_for(max(rows * columns, rows * channels, channels * columns), max(rows, channels))
        steps = (0, columns, 0)
        vectors, self.data_vectors = Vectors(channels, 1, columns, *steps), Vectors(rows, 1, columns, *steps)
        super().__init__(program, w, vectors, 1, False, threads, rows, rows, rows, threads * channels)
        self.by_input, self.offset = self.doubles, bias if output is not None else None
        self.norm, self.inverse, self.partial = self.numbers
        self._read_off(contraction.native(input, weight, None) if output is None else output)

    def _read_off(self, output: Tensor) -> None:
        self.p = self.contraction.as_pairs(output).contiguous()

    def measure(self, then: Callable[[], Sequence[Phase]]) -> None:
        """Norms of all vectors, and then what needs them: again without a bias that turns out to have drowned p."""
        rows = self.data_vectors.channels
        of_input = self.norms_of(self.x, self.data_vectors, rows, self.norm, self.inverse, self.total_norm)
        norms, offset = (self.norms_of_weight(), of_input), self.offset
        in_turn(self.threads, *norms, self.tabulate(offset, rows), *then())
        if offset is not None and self.is_drowned:
            self._read_off(self.contraction.native(self.input, self.weight, None))
            in_turn(self.threads, *norms, self.tabulate(None, rows), *then())

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool, overwrite: bool = False) -> Gradients:
        """dX and dW; with `overwrite`, the memory of grad may be used."""
        steps = LinearSteps(self, self.contraction.as_pairs(grad), overwrite)
        everything, of_input, of_weight = slice(0, len(self.p)), None, None
        dw = torch.empty_like(self.weight_memory) if wants_weight else None
        self.measure(lambda: [*steps.phases(everything, wants_input), *([] if dw is None else self.along(dw))])
        if wants_input:
            of_input = like(steps.input_gradient(everything), self.input)
        if dw is not None:
            of_weight = like(steps.add_turned(dw), self.weight)
        self.finish()
        return of_input, of_weight

    def turned(self, grad: Tensor) -> Tensor:
        """D∘g, of ∂/∂w; the memory of grad may be used, and be that of the output."""
        steps = LinearSteps(self, self.contraction.as_pairs(grad), overwrite=True)
        self.measure(lambda: steps.phases(slice(0, len(self.p)), False))
        self.finish()
        in_place = steps.for_weight.data_ptr() == grad.data_ptr()
        return grad if in_place else steps.for_weight.view(grad.shape)

    def along(self, dw: Tensor) -> list[Phase]:
        """What dW begins with."""
        return [self.along_weight(dw, fresh=True)] if self.program.weight.has_sums else []

    def stepwise(self, grad: Tensor) -> LinearSteps:
        """For rows of the gradient as they become known."""
        self.measure(list)
        return LinearSteps(self, grad, overwrite=False)


class LinearSteps:
    """`rules.Steps`."""

    def __init__(self, rule: LinearRule, grad: Tensor, overwrite: bool) -> None:
        self.rule, self.grad = rule, grad.contiguous()
        self.for_weight, self.for_input = rule.turned_for(self.grad, overwrite)
        self.dx = rule.x[:0]

    def split(self, rows: slice) -> None:
        count = rows.stop - rows.start
        work = count * max(self.rule.count, self.rule.data_vectors.length)
        in_turn(min(self.rule.threads, threads_for(work, count)), *self.phases(rows, True))

    def phases(self, rows: slice, wants_input: bool) -> list[Phase]:
        """Those that split rows; if dX is wanted, they also give what it begins with: a multiple of each row."""
        rule = self.rule
        pairs = tuple(t.data_ptr() for t in (rule.p, self.grad, self.for_weight, self.for_input))
        norms = (rule.table, rule.norm, rule.inverse, rule.by_weight, rule.by_input)
        integers = (1, rule.count, *pairs, *norms, rule.registers, rule.partial, rule.plan)
        found = [Phase(passes().split_rows[rule.size], rows.start, rows.stop, integers, True, rule.drowned)]
        if wants_input and rule.program.input.has_sums:
            columns = rule.data_vectors.length
            self.dx = rule.x.new_empty(rows.stop - rows.start, columns)
            start = self.dx.data_ptr() - rows.start * columns * rule.size  # the pass counts from the first of all rows
            where = (*rule.data_vectors, rule.x.data_ptr(), rule.inverse, rule.by_input, 1, 0, start, True)
            found.append(Phase(passes().add_along[rule.size], rows.start, rows.stop, where))
        return found

    def input_gradient(self, rows: slice) -> Tensor:
        rule, half, count = self.rule, self.rule.program.input, rows.stop - rows.start
        if half.turn == 0.0:
            return self.dx if half.has_sums else rule.x.new_zeros(count, rule.data_vectors.length)
        turned = self.for_input if count == len(self.for_input) else self.for_input[rows]
        w = rule.weight_memory  # (rows, out) @ (out, in)
        return self.dx.addmm_(turned, w) if half.has_sums else turned.mm(w)

    def weight_gradient(self) -> Tensor:
        rule = self.rule
        dw = torch.empty_like(rule.weight_memory)
        in_turn(threads_for(dw.numel(), rule.count), *rule.along(dw))
        result = self.add_turned(dw)
        rule.finish()
        return like(result, rule.weight)

    def add_turned(self, dw: Tensor) -> Tensor:
        """dW, from what it begins with: the multiples of the weight vectors, or nothing of use."""
        half = self.rule.program.weight
        if half.turn == 0.0:
            return dw if half.has_sums else dw.zero_()
        turned, x = self.for_weight.t(), self.rule.x  # (out, rows) @ (rows, in)
        return dw.addmm_(turned, x) if half.has_sums else torch.mm(turned, x, out=dw)


def like(t: Tensor, other: Tensor) -> Tensor:
    """In the other's shape; a view that changes nothing would cost as much as a small kernel."""
    return t if t.dim() == other.dim() else t.view(other.shape)
