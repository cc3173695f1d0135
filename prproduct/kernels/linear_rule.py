"""The gradients of a linear layer by the compiled passes: rows of the input with rows of the weight.

What follows from shapes alone is written down once (`Passes`), and a backward fills in its addresses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prproduct.kernels.blas import gemm
from prproduct.kernels.compiled import passes
from prproduct.kernels.contractions import Linear, as_rows
from prproduct.kernels.memory import Desk, give_back_desk, take_desk
from prproduct.kernels.programs import Half, Program
from prproduct.kernels.rules import Gradients, Loans, Part, Vectors, WrittenPasses
from prproduct.kernels.scores import Phase, stand_in
from prproduct.kernels.threads import team, threads_for

# What a score is played with: memory by its address, and a range of rows; ADDEND if something was added to the output.
MEMORY, X, W, BIAS, P, GRAD, FOR_WEIGHT, FOR_INPUT, DX, DW, FIRST, LAST, DBIAS, ADDEND = map(stand_in, range(14))


class Passes(WrittenPasses):
    """Those for one shape of input and weight, with stand-ins for all memory."""

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        input: tuple[int, ...],
        weight: tuple[int, ...],
        team: tuple[int, bool],
    ) -> None:
        """`team` is what `threads.team` says, by which remembered passes are found."""
        (rows, columns), channels = input, weight[0]
        most = max(rows * columns, rows * channels, channels * columns)
        threads = threads_for(most, max(rows, channels))
        vectors = Vectors(channels, 1, columns, 0, columns, 0)
        super().__init__(
            program, dtype, vectors, 1, False, threads, rows + threads * channels, rows, rows, 2 * threads * channels
        )
        self.lay_out(MEMORY)
        self.rows, self.columns, self.data_vectors = rows, columns, vectors._replace(channels=rows)
        self.by_input, self.by_column = self.doubles, self.doubles + 8 * rows
        self.norm, self.inverse, self.partial = self.numbers

    def measure(self, bias: int = 0, bias_step: int = 0) -> list[Phase]:
        """The norms of all vectors."""
        of_input = self.norms(X, self.data_vectors, self.rows, self.norm, self.inverse, self.total_norm)
        return [self.weight_norms(W), self.weight_table(bias, bias_step), of_input]

    def measure_with_one_bias(self) -> list[Phase]:
        return self.measure(BIAS)

    def measure_with_biases(self) -> list[Phase]:
        return self.measure(BIAS, 1)

    def check(self) -> list[Phase]:
        """Whether the bias has drowned p: before the split if that may overwrite what p came from, or behind it."""
        return [self.find_drowned(self.rows)]

    def check_total(self) -> list[Phase]:
        """Whether bias and addend have: behind the split, which adds up the latter."""
        return [self.find_drowned(self.rows, self.added)]

    def split(self, by_column: int = 0, addend: int = 0) -> list[Phase]:
        """`splitting.split`, of a range of rows; not if the bias has drowned p."""
        norms = (self.table, self.norm, self.inverse, self.by_weight, self.by_input)
        pairs = (P, GRAD, FOR_WEIGHT, FOR_INPUT)
        memory = (self.registers, self.partial, self.plan, by_column, addend, self.added)
        integers = (1, self.count, *pairs, *norms, *memory)
        return [Phase(passes().split_rows[self.size], FIRST, LAST, integers, True, self.drowned)]

    def split_and_sum(self) -> list[Phase]:
        """The same, and the sums of the gradient for the bias, in shares: its rows are read anyway."""
        return self.split(self.by_column)

    def split_total(self) -> list[Phase]:
        """`split`, of an output to which something was added."""
        return self.split(addend=ADDEND)

    def split_total_and_sum(self) -> list[Phase]:
        """The same, and the sums for the bias."""
        return self.split(self.by_column, ADDEND)

    def along_bias(self) -> list[Phase]:
        """The gradient of the bias."""
        integers = (self.count, self.threads, self.by_column, DBIAS)
        return [Phase(passes().sum_shares[self.size], 0, self.count, integers, waits=True)]

    def along_input(self, fresh: bool = True) -> list[Phase]:
        """What dX begins with: a multiple of each row."""
        where = (*self.data_vectors, X, self.inverse, self.by_input, 1, 0, DX, fresh)
        return [Phase(passes().add_along[self.size], FIRST, LAST, where)] if self.program.input.has_sums else []

    def also_along_input(self) -> list[Phase]:
        """The same where dX has begun with something else."""
        return self.along_input(fresh=False)

    def along_weight(self) -> list[Phase]:
        """What dW begins with."""
        return [self.weight_multiples(W, DW, fresh=True)] if self.program.weight.has_sums else []

    def both_products(self, first: int = 0, last: int = 2) -> list[Phase]:
        """D∘g with the weight and with the input, added to what dX and dW begin with; not if the bias has drowned p."""
        integers = (gemm(self.size), self.rows, self.count, self.columns, FOR_WEIGHT, W, X, DX, DW)
        columns = (first * self.columns, last * self.columns)
        return [Phase(passes().add_products[self.size], *columns, integers, True, self.drowned)]

    def input_product(self) -> list[Phase]:
        return self.both_products(last=1)

    def weight_product(self) -> list[Phase]:
        return self.both_products(first=1)


class LinearRule:
    """`rules.Rule`, for all rows at once or stepwise.

    Before a small layer's backward caches are cold, and every call in Python is felt: there are few.
    """

    def __init__(
        self,
        contraction: Linear,
        program: Program,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor | None,
        addend: Tensor | None = None,
    ) -> None:
        """`bias` has one number, or one for each row of the weight."""
        self.contraction, self.program, self.input, self.weight = contraction, program, input, weight
        self.x = (input if input.dim() == 2 else as_rows(input)).contiguous()
        self.w = (weight if weight.dim() == 2 else weight[None]).contiguous()
        self.passes = Passes.of(program, input.dtype, self.x.shape, self.w.shape, team())
        self.bias = None if bias is None or output is None else bias.contiguous()
        self.addend = None if addend is None else contraction.as_pairs(addend).contiguous()
        self._read_off(contraction.native(input, weight, None) if output is None else output)

    def _read_off(self, output: Tensor) -> None:
        self.p = self.contraction.as_pairs(output).contiguous()

    def measure(self, desk: Desk, then: tuple[Part, ...] = (), given: tuple[int, ...] = (0,) * 7) -> None:
        """Norms of all vectors, and then what needs them: again without what turns out to have drowned p."""
        passes, bias, addend, x, w = self.passes, self.bias, self.addend, self.x.data_ptr(), self.w.data_ptr()
        if bias is not None or addend is not None:
            first: Part = Passes.measure
            if bias is not None:
                first = Passes.measure_with_biases if bias.numel() > 1 else Passes.measure_with_one_bias
            if addend is None:
                parts, where = (first, Passes.check, *then), given
            else:
                of_total = (Passes.split_total if part is Passes.split else part for part in then)
                parts, where = (first, *of_total, Passes.check_total), (*given, 0, addend.data_ptr())
            bias_at = 0 if bias is None else bias.data_ptr()
            passes.score(*parts).play(passes.threads, desk.address, x, w, bias_at, self.p.data_ptr(), *where)
            if desk.answer.value == 0.0:
                return
            self._read_off(self.contraction.native(self.input, self.weight, None))
        score = passes.score(Passes.measure, *then)
        score.play(passes.threads, desk.address, x, w, 0, self.p.data_ptr(), *given)

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        passes, program, input, weight = self.passes, self.program, self.input, self.weight
        grad, loans = self.contraction.as_pairs(grad).contiguous(), Loans()
        for_weight, for_input = loans.turned_for(program, grad)
        across = for_weight.t()  # now: behind the products, this small thing would take 10 µs
        dx = torch.empty_like(self.x) if wants_input else None
        dw = torch.empty_like(self.w) if wants_weight else None
        results = (0 if dx is None else dx.data_ptr(), 0 if dw is None else dw.data_ptr())
        pairs = (grad.data_ptr(), for_weight.data_ptr(), for_input.data_ptr())
        desk = take_desk(passes.bytes)
        self.measure(desk, THEN[wants_input, wants_weight], (*pairs, *results, 0, passes.rows))
        give_back_desk(desk)
        if dx is not None:  # (rows, out) @ (out, in)
            dx = with_product(dx, program.input, for_input, self.w)
            dx = dx if self.x is input else dx.view(input.shape)
        if dw is not None:  # (out, rows) @ (rows, in)
            dw = with_product(dw, program.weight, across, self.x)
            dw = dw if self.w is weight else dw.view(weight.shape)
        loans.give_back()
        return dx, dw

    def turned(self, grad: Tensor) -> Tensor:
        """D∘g, of ∂/∂w; the memory of grad may be used, and be that of the output."""
        pairs = self.contraction.as_pairs(grad).contiguous()
        turned, _ = Loans().turned_for(self.program, pairs, overwrite=True)
        given = (pairs.data_ptr(), turned.data_ptr(), turned.data_ptr(), 0, 0, 0, self.passes.rows)
        desk = take_desk(self.passes.bytes)
        self.measure(desk, (Passes.split,), given)
        give_back_desk(desk)
        return grad if turned.data_ptr() == grad.data_ptr() else turned.view(grad.shape)

    def stepwise(self, grad: Tensor) -> LinearSteps:
        """For rows of the gradient as they become known."""
        return LinearSteps(self, grad.contiguous())


# What comes behind norms for dX and dW, if wanted.
THEN = {
    (False, False): (Passes.split,),
    (False, True): (Passes.split, Passes.along_weight),
    (True, False): (Passes.split, Passes.along_input),
    (True, True): (Passes.split, Passes.along_input, Passes.along_weight),
}

PRODUCTS = {
    (False, True): Passes.weight_product,
    (True, False): Passes.input_product,
    (True, True): Passes.both_products,
}


class LinearSteps:
    """`rules.Steps`."""

    def __init__(self, rule: LinearRule, grad: Tensor) -> None:
        self.rule, self.grad, self.loans = rule, grad, Loans()
        self.for_weight, self.for_input = self.loans.turned_for(rule.program, grad)
        self.desk = Desk(rule.passes.bytes)  # of its own: others will be at work between the steps
        rule.measure(self.desk)
        tensors = (rule.p, grad, self.for_weight, self.for_input)
        pairs = (t.data_ptr() for t in tensors)
        self.where = (self.desk.address, rule.x.data_ptr(), rule.w.data_ptr(), 0, *pairs)
        self.dx = rule.x[:0]

    def split(self, rows: slice) -> None:
        rule, columns, count = self.rule, self.rule.x.shape[1], rows.stop - rows.start
        self.dx = rule.x.new_empty(count, columns)
        start = self.dx.data_ptr() - rows.start * columns * rule.passes.size  # passes count from the first of all rows
        threads = min(rule.passes.threads, threads_for(count * max(rule.passes.count, columns), count))
        score = rule.passes.score(Passes.split, Passes.along_input)
        score.play(threads, *self.where, start, 0, rows.start, rows.stop)

    def input_gradient(self, rows: slice) -> Tensor:
        return with_product(self.dx, self.rule.program.input, self.for_input[rows], self.rule.w)

    def weight_gradient(self) -> Tensor:
        rule = self.rule
        dw = torch.empty_like(rule.w)
        score = rule.passes.score(Passes.along_weight)
        score.play(threads_for(dw.numel(), len(dw)), *self.where, 0, dw.data_ptr(), 0, 0)
        result = with_product(dw, rule.program.weight, self.for_weight.t(), rule.x)
        self.loans.give_back()
        return like(result, rule.weight)


def with_product(start: Tensor, half: Half, turned: Tensor, others: Tensor) -> Tensor:
    """dX or dW, from what it begins with: multiples of its vectors if there are any, or memory to be filled."""
    if half.turn == 0.0:
        return start if half.has_sums else start.zero_()
    return start.addmm_(turned, others) if half.has_sums else torch.mm(turned, others, out=start)


def like(t: Tensor, other: Tensor) -> Tensor:
    """In the other's shape; a view that changes nothing would cost as much as a small kernel."""
    return t if t.dim() == other.dim() else t.view(other.shape)
