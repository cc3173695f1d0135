"""When the compiled passes serve, and on which threads they run.

They take float32 and float64 on the CPU, in eager mode, while no graph is built; elsewhere plain torch does the same.
They release the GIL and run on a small pool of threads of our own: Numba's own layers change torch's thread count, kill
forked children, or abort when two threads enter them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.pairs import Pairs
from prproduct.kernels.programs import Program

_SMALL = 2**16  # elements below which another thread costs more than it saves
_switched_on = True


@functools.cache
def passes() -> Any:
    """The kernels, loaded when first needed; None on platforms that Numba does not know."""
    try:
        from prproduct.kernels import passes
    except ImportError:
        return None
    return passes


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Plain torch everywhere, to compare with."""
    global _switched_on
    _switched_on = False
    try:
        yield
    finally:
        _switched_on = True


def serves(*tensors: Tensor) -> bool:
    """Whether these are what the kernels take, here and now."""
    return (
        _switched_on
        and not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
        and all(_is_plain(t) and t.dtype == tensors[0].dtype for t in tensors)
        and passes() is not None
    )


def _is_plain(t: Tensor) -> bool:
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and t.dtype in (torch.float32, torch.float64)
        and t.layout == torch.strided
        and t.numel() > 0
        and not t.is_neg()
        and not torch._C._functorch.is_legacy_batchedtensor(t)
    )


def split(
    program: Program, pairs: Pairs, weight_length: Tensor, grad: Tensor, turned: Tensor | None
) -> list[tuple[Tensor | None, Tensor | None]]:
    """`splitting.split` in one pass: D∘g and the sums, for ∂/∂w and for ∂/∂x."""
    lay_out, lay_out_norms = _layout(pairs.output)
    output, grad = lay_out(pairs.output), lay_out(grad)
    input_inverse, input_norm = (lay_out_norms(norm) for norm in (pairs.input.inverse, pairs.input.value))
    floor, rounded = pairs.floors()
    offset = torch.zeros_like(rounded) if pairs.offset is None else pairs.offset.expand_as(rounded)
    groups, channels = output.shape[1:3]
    of_weights = (offset, pairs.weight.inverse, rounded, pairs.weight.value, weight_length)
    halves = [program.weight] if program.same else [program.weight, program.input]
    unwritten = output.new_empty((0,) * output.dim())
    targets = [unwritten, unwritten]
    for index, half in enumerate(halves):
        if half.writes:
            targets[index] = torch.empty_like(output) if index or turned is None else lay_out(turned)
    threads = _threads(output)
    by_weight = torch.zeros(threads, groups, channels, dtype=torch.float64)
    by_input = torch.zeros_like(input_norm)
    scalar = np.float32 if output.dtype == torch.float32 else np.float64
    _share_out(
        passes().split_rows if output.dim() == 3 else passes().split_planes,
        threads,
        *_arrays(output, grad),
        *_arrays(*(t.reshape(groups, channels) for t in of_weights)),
        *_arrays(input_inverse, input_norm),
        scalar(floor),
        scalar(torch.finfo(output.dtype).eps),
        program.steps if len(program.steps) else None,
        program.constants,
        program.asks_for_sin,
        program.asks_for_norms,
        np.array([(half.length, half.direction, half.writes, half.has_sums) for half in halves]),
        *_arrays(*targets, by_weight, by_input),
    )
    by_row = output.dim() == 3
    sums = (
        by_weight.sum(0).to(output.dtype).view(pairs.weight.value.shape),
        _undo_layout(by_input, pairs.input.value, by_row),
    )
    results: list[tuple[Tensor | None, Tensor | None]] = []
    for half, target, of_vectors in zip(
        (halves[0], halves[-1]), (targets[0], targets[len(halves) - 1]), sums, strict=True
    ):
        whole = target if half.writes else grad
        turned = None if half.turn == 0.0 else _undo_layout(whole, pairs.output, by_row)
        results.append((turned, of_vectors if half.has_sums else None))
    return results


def square_sums(t: Tensor) -> Tensor:
    """Σ t² over the last axis of (rows, columns)."""
    squares = t.new_empty(len(t))
    _share_out(passes().squares_rows, _threads(t), *_arrays(t.contiguous(), squares))
    return squares


def square_sums_of_planes(t: Tensor) -> Tensor:
    """Σ t² over the third axis of (batch, groups, channels, *spatial)."""
    batch, groups, channels, *spatial = t.shape
    squares = t.new_zeros(batch * groups, torch.Size(spatial).numel())
    planes = t.reshape(batch * groups, channels, -1)
    _share_out(passes().squares_planes, _threads(t), *_arrays(planes, squares))
    return squares.view(batch, groups, *spatial)


def add_to_rows(total: Tensor, t: Tensor, first: Tensor, second: Tensor) -> None:
    """total += t·first·second, of (rows, columns) and two numbers a row."""
    rows = len(total)
    _share_out(
        passes().add_rows, _threads(t), *_arrays(total, t.contiguous(), first.reshape(rows), second.reshape(rows))
    )


def add_to_planes(total: Tensor, t: Tensor, first: Tensor, second: Tensor) -> None:
    """total += t·first·second, of (batch, groups, channels, *spatial), (batch, groups, *spatial) and (groups,)."""
    planes = [t.reshape(*t.shape[:3], -1) for t in (total, t)]
    _share_out(
        passes().add_planes, _threads(t), *_arrays(*planes, first.reshape(*first.shape[:2], -1), second.reshape(-1))
    )


def _layout(output: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """How pairs and input norms become the arrays of a pass, of rows or of planes."""
    if output.dim() == 2:
        return lambda t: t.contiguous().unsqueeze(1), lambda t: t.contiguous()
    if _channels_last(output).is_contiguous() and not output.is_contiguous():
        by_row = output.shape[1:3]
        return (
            lambda t: _channels_last(t).contiguous().view(-1, *by_row),
            lambda t: _channels_last(t).reshape(-1, by_row[0]).contiguous(),
        )
    return lambda t: t.contiguous().view(*t.shape[:3], -1), lambda t: t.reshape(*t.shape[:2], -1).contiguous()


def _channels_last(t: Tensor) -> Tensor:
    """(batch, groups, channels, *spatial) as (batch, *spatial, groups, channels)."""
    return t.movedim((1, 2), (-2, -1))


def _undo_layout(laid_out: Tensor, like: Tensor, by_row: bool) -> Tensor:
    if by_row and like.dim() > 2:
        return laid_out.view(_channels_last(like).shape).movedim((-2, -1), (1, 2))
    return laid_out.view(like.shape)


def _arrays(*tensors: Tensor) -> Iterator[Any]:
    return (t.detach().numpy() for t in tensors)


_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """A forked child has the pool but not its threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _threads(t: Tensor) -> int:
    """As many as torch uses, and no more than there are pieces to share out."""
    return 1 if t.numel() < _SMALL else min(torch.get_num_threads(), len(t))


def _share_out(kernel: Callable[..., None], threads: int, array: Any, *others: Any) -> None:
    """Run the kernel over the first axis of the array, in equal shares; with the last of them on this thread."""
    global _pool
    if threads == 1:
        kernel(0, len(array), 0, array, *others)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="prproduct")
    bounds = itertools.pairwise(len(array) * thread // threads for thread in range(threads + 1))
    *elsewhere, (share, here) = enumerate(bounds)
    running = [_pool.submit(kernel, *part, index, array, *others) for index, part in elsewhere]
    kernel(*here, share, array, *others)
    for future in running:
        future.result()
