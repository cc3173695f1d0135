"""The backward of a small linear layer in one straight line.

Behind each product of a layer that takes 1 ms, Python runs with cold caches: a call of anything takes 1 µs, and all of
`linear_rule.LinearRule` took a tenth of the layer. So what follows from shapes is looked up once, and the rest is one
call of compiled code: passes, and both products by torch's own BLAS. Layers of 50 ms still gain by it: a thread has the
memory at hand that it just wrote. Any other layer is left to `LinearRule`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, empty_like

from prproduct.kernels.blas import gemm
from prproduct.kernels.linear_rule import PRODUCTS, THEN, Passes
from prproduct.kernels.memory import give_back_desk, take_desk
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import ThreeGradients, Wanted
from prproduct.kernels.scores import Score
from prproduct.kernels.threads import openmp, team


class _Written(NamedTuple):
    """What is known for given shapes."""

    score: Score
    threads: int
    bytes: int  # that its passes work in
    turned: int  # how far into them D∘g lies, if passes do the products too; 0 if torch is to do them
    rows: int
    channels: int


def small_backward(
    program: Program,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    p: Tensor,
    addend: Tensor | None,
    grad: Tensor,
    wanted: Wanted,
) -> ThreeGradients | None:
    """The gradients, for tensors that `compiled.serves`; None if the layer is not small.

    p is the output, with the bias and the addend in it if there are any.
    """
    added = addend is not None
    key = (x.shape, w.shape, p.shape, None if bias is None else bias.shape, added, x.dtype, wanted, team())
    written = program.small_layers.get(key)
    if written is None:
        written = program.small_layers[key] = _write(program, *key)
    if not written or not (
        x.is_contiguous()
        and w.is_contiguous()
        and p.is_contiguous()
        and grad.is_contiguous()
        and p.shape == grad.shape
        and (bias is None or bias.is_contiguous())
        and (addend is None or (addend.is_contiguous() and addend.shape == p.shape))
    ):
        return None
    score, threads, bytes, inside, rows, channels = written
    desk = take_desk(bytes)
    if inside:
        where = desk.address + inside
    else:
        turned = grad.new_empty(rows, channels)
        where, across = turned.data_ptr(), turned.t()  # now: behind the products, this small thing would take 10 µs
    dx = empty_like(x) if wanted[0] else None
    dw = empty_like(w) if wanted[1] else None
    db = empty_like(bias) if wanted[2] and bias is not None else None
    score.play(
        threads,
        desk.address,
        x.data_ptr(),
        w.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        p.data_ptr(),
        grad.data_ptr(),
        where,
        where,
        0 if dx is None else dx.data_ptr(),
        0 if dw is None else dw.data_ptr(),
        0,
        rows,
        0 if db is None else db.data_ptr(),
        0 if addend is None else addend.data_ptr(),
    )
    drowned = (added or bias is not None) and desk.answer.value != 0.0
    give_back_desk(desk)
    if drowned:
        p = torch.mm(x.view(rows, -1), w.t()).view(grad.shape)
        again = small_backward(program, x, w, None, p, None, grad, (*wanted[:2], False))
        return None if again is None else (*again[:2], db)
    if not inside:
        if dx is not None:
            dx.view(rows, -1).addmm_(turned, w)  # (rows, out) @ (out, in)
        if dw is not None:
            dw.addmm_(across, x.view(rows, -1))  # (out, rows) @ (rows, in)
    return dx, dw, db


def _write(
    program: Program,
    x: torch.Size,
    w: torch.Size,
    p: torch.Size,
    bias: torch.Size | None,
    added: bool,
    dtype: torch.dtype,
    wanted: Wanted,
    team: tuple[int, bool],
) -> _Written | tuple[()]:
    """Nothing if the layer is not small."""
    if len(program.small_layers) >= _REMEMBERED:  # as with sequences of any length
        program.small_layers.clear()
    half, rows = program.weight, x[:-1].numel()
    of_rows = len(x) > 1 and len(w) == 2 and (bias is None or bias == w[:1])
    fits = of_rows and p == (*x[:-1], w[0]) and x[-1] == w[1]  # hooks may have changed what was kept
    if not (fits and program.same and half.writes and half.has_sums and rows * w[0] * dtype.itemsize < _SMALL):
        return ()
    passes = Passes.of(program, dtype, (rows, x[-1]), tuple(w), team)
    split, *along = THEN[wanted[:2]]
    parts = [Passes.measure if bias is None else Passes.measure_with_biases]
    if wanted[2]:
        parts += [Passes.split_total_and_sum if added else Passes.split_and_sum, *along, Passes.along_bias]
    else:
        parts += [Passes.split_total if added else split, *along]
    if added or bias is not None:
        parts.append(Passes.check_total if added else Passes.check)
    bytes = turned = 0
    if _multiplies(passes):
        parts.append(PRODUCTS[wanted[:2]])
        bytes, turned = rows * w[0] * dtype.itemsize, -(-passes.bytes // _LINE) * _LINE
    return _Written(passes.score(*parts), passes.threads, passes.bytes + turned + bytes, turned, rows, w[0])


def _multiplies(passes: Passes) -> bool:
    """Whether a team does the products itself, each thread those of some columns: of two, one does dX and one dW.

    Many threads would each prepare all of D∘g for a few columns, which MKL does better. In a forked child MKL must not
    be called by several threads at once.
    """
    few = passes.threads <= 2 or 2 * passes.columns >= passes.threads * _WIDE
    return few and openmp() is not None and gemm(passes.size) != 0


_SMALL = 2**23  # bytes of an output; as many are kept for the next backward
_REMEMBERED = 1024  # shapes, for each product
_WIDE = 256  # columns, so that multiplying them takes much longer than preparing D∘g
_LINE = 64  # bytes of the cache
