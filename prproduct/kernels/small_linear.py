"""The backward of a small linear layer in one straight line.

Between the products of a layer that takes 1 ms, Python runs with cold caches: a call of anything takes 1 µs, and all of
`linear_rule.LinearRule` a tenth of the layer. So what follows from shapes is looked up once, and the rest is done here,
in as few steps as there can be. Any other layer is left to `LinearRule`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, empty_like

from prproduct.kernels.linear_rule import THEN, Passes
from prproduct.kernels.memory import LARGE, desk
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import Gradients
from prproduct.kernels.scores import Score
from prproduct.kernels.threads import team


class _Written(NamedTuple):
    """What is known for given shapes."""

    score: Score
    threads: int
    bytes: int
    rows: int


def small_backward(
    program: Program,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    p: Tensor,
    grad: Tensor,
    wants_input: bool,
    wants_weight: bool,
) -> Gradients | None:
    """dX and dW, for tensors that `compiled.serves`; None if it is not a small layer, or its bias has drowned p."""
    offsets = None if bias is None else bias.shape
    key = (x.shape, w.shape, offsets, x.dtype, wants_input, wants_weight, team())
    if key not in program.small_layers:
        _write(program, key)
    written = program.small_layers[key]
    if written is None or not (
        x.is_contiguous()
        and w.is_contiguous()
        and p.is_contiguous()
        and grad.is_contiguous()
        and (bias is None or bias.is_contiguous())
    ):
        return None
    score, threads, bytes, rows = written
    turned = empty_like(grad)
    across = turned.t()  # now: behind the products, this small thing would take 10 µs
    dx = empty_like(x) if wants_input else None
    dw = empty_like(w) if wants_weight else None
    memory, where = desk(bytes), turned.data_ptr()
    score.play(
        threads,
        memory.address,
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
    )
    if memory.answer.value != 0.0:
        return None
    if dx is not None:
        dx.addmm_(turned, w)  # (rows, out) @ (out, in)
    if dw is not None:
        dw.addmm_(across, x)  # (out, rows) @ (rows, in)
    return dx, dw


def _write(program: Program, key: tuple[torch.Size, torch.Size, torch.Size | None, torch.dtype, bool, bool, tuple[int, bool]]) -> None:
    x, w, bias, dtype, wants_input, wants_weight, team = key
    pairs = x[0] * w[0]
    matrices = len(x) == len(w) == 2 and (bias is None or bias == w[:1])
    if matrices and pairs * dtype.itemsize < LARGE and program.same and program.weight.writes and program.weight.has_sums:
        passes = Passes.of(program, dtype, x, w, team)
        first = Passes.measure if bias is None else Passes.measure_with_biases
        score = passes.score(first, *THEN[wants_input, wants_weight])
        program.small_layers[key] = _Written(score, passes.threads, passes.bytes, passes.rows)
    else:
        program.small_layers[key] = None
