"""The backward of a small linear layer in one straight line.

Between the products of a layer that takes 1 ms, Python runs with cold caches: a call of anything takes 1 µs, and all of
`linear_rule.LinearRule` took a tenth of the layer. So what follows from shapes is looked up once, and the rest is done
here, in as few steps as there can be. Any other layer is left to `LinearRule`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, empty_like

from prproduct.kernels.linear_rule import THEN, Passes
from prproduct.kernels.memory import LARGE, Desk
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import ThreeGradients, Wanted
from prproduct.kernels.scores import Score
from prproduct.kernels.threads import team


class _Written(NamedTuple):
    """What is known for given shapes."""

    score: Score
    threads: int
    bytes: int  # that its passes work in
    rows: int
    channels: int


def small_backward(
    program: Program, x: Tensor, w: Tensor, bias: Tensor | None, p: Tensor, grad: Tensor, wanted: Wanted
) -> ThreeGradients | None:
    """The gradients, for tensors that `compiled.serves`; None if the layer is not small."""
    key = (x.shape, w.shape, None if bias is None else bias.shape, x.dtype, wanted, team())
    written = program.small_layers.get(key)
    if written is None:
        written = program.small_layers[key] = _write(program, *key)
    if not written or not (
        x.is_contiguous()
        and w.is_contiguous()
        and p.is_contiguous()
        and grad.is_contiguous()
        and p.shape == grad.shape  # hooks may have changed what was kept
        and (bias is None or bias.is_contiguous())
    ):
        return None
    score, threads, bytes, rows, channels = written
    shape, turned = x.shape, grad
    if len(shape) == 2:
        turned = empty_like(grad)
    else:
        x, turned = x.view(rows, shape[-1]), grad.new_empty(rows, channels)
    across = turned.t()  # now: behind the products, this small thing would take 10 µs
    dx = empty_like(x) if wanted[0] else None
    dw = empty_like(w) if wanted[1] else None
    db = empty_like(bias) if wanted[2] and bias is not None else None
    desk, where = _take_desk(bytes), turned.data_ptr()
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
    )
    drowned = bias is not None and desk.answer.value != 0.0
    _desks.append(desk)
    if drowned:
        p = torch.mm(x, w.t()).view(grad.shape)
        again = small_backward(program, x.view(shape), w, None, p, grad, (*wanted[:2], False))
        return None if again is None else (*again[:2], db)
    if dx is not None:
        dx.addmm_(turned, w)  # (rows, out) @ (out, in)
        dx = dx if len(shape) == 2 else dx.view(shape)
    if dw is not None:
        dw.addmm_(across, x)  # (out, rows) @ (rows, in)
    return dx, dw, db


_desks: list[Desk] = []  # in nobody's use: at most as many as threads ever ran a backward at once


def _take_desk(bytes: int) -> Desk:
    try:
        desk = _desks.pop()
    except IndexError:
        return Desk(bytes)
    return desk if desk.size >= bytes else Desk(bytes)


def _write(
    program: Program,
    x: torch.Size,
    w: torch.Size,
    bias: torch.Size | None,
    dtype: torch.dtype,
    wanted: Wanted,
    team: tuple[int, bool],
) -> _Written | tuple[()]:
    """Nothing if the layer is not small."""
    if len(program.small_layers) >= _REMEMBERED:  # as with sequences of any length
        program.small_layers.clear()
    half, rows = program.weight, x[:-1].numel()
    of_rows = len(x) > 1 and len(w) == 2 and (bias is None or bias == w[:1])
    if not (of_rows and program.same and half.writes and half.has_sums and rows * w[0] * dtype.itemsize < LARGE):
        return ()
    passes = Passes.of(program, dtype, (rows, x[-1]), tuple(w), team)
    parts = [Passes.sum_gradients] if wanted[2] else []
    if bias is None:
        parts += [Passes.measure, *THEN[wanted[:2]]]
    else:
        parts += [Passes.measure_with_biases, *THEN[wanted[:2]], Passes.check_behind]
    return _Written(passes.score(*parts), passes.threads, passes.bytes, rows, w[0])


_REMEMBERED = 1024  # shapes, for each product
