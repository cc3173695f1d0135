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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from prproduct.kernels.programs import Half, Program

if TYPE_CHECKING:
    from prproduct.kernels.pairs import Pairs

_SMALL = 2**20  # elements below which another thread costs more than it saves: torch's own still spin on the cores
_switched_on = True


@functools.cache
def passes() -> Any:
    """The kernels, loaded when first needed; None on platforms that Numba does not know."""
    try:
        import numba

        from prproduct.kernels import passes
    except ImportError:
        return None
    return None if getattr(numba.config, "DISABLE_JIT", False) else passes


@functools.cache
def lstm() -> Any:
    """The kernels of LSTM's step."""
    from prproduct.kernels import lstm

    return lstm


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
        and not torch._C._len_torch_dispatch_stack()  # somebody records the operations
        and forward_ad._current_level < 0
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
        and not t._is_zerotensor()
        and not torch._C._functorch.is_legacy_batchedtensor(t)
    )


def serves_pairs(pairs: Pairs, grad: Tensor) -> bool:
    """Whether `split` takes them."""
    offset, norms = pairs.weight.offset, pairs.weight.norms.value
    one_offset_a_weight = offset is None or offset.dim() <= norms.dim()
    return one_offset_a_weight and serves(grad, pairs.output, norms, pairs.input.value)


class Split:
    """`splitting.split`, for all pairs or for some rows at a time: one pass each."""

    def __init__(self, program: Program, pairs: Pairs, grad: Tensor, turned: Tensor | None) -> None:
        if turned is not None:
            needed = turned.data_ptr() == grad.data_ptr() and not program.same  # by the other half
            turned = None if needed or turned.dtype != grad.dtype else turned
        self.layout = layout = _Layout(pairs.output)
        self.pairs, self.program = pairs, program
        output, self.grad = layout.of_pairs(pairs.output), layout.of_pairs(grad)
        input_inverse, input_norm = layout.of_norms(pairs.input.inverse), layout.of_norms(pairs.input.value)
        groups, channels = output.shape[1:3]
        halves = [program.weight] if program.same else [program.weight, program.input]
        unwritten = output.new_empty((0,) * output.dim())
        self.targets = [unwritten, unwritten]
        for index, half in enumerate(halves):
            if half.writes:
                self.targets[index] = torch.empty_like(output) if index or turned is None else layout.of_pairs(turned)
        self.by_weight = torch.zeros(_threads(output), groups, channels, dtype=torch.float64)
        self.by_input = torch.zeros_like(input_norm)
        self.kernel = passes().split_rows if layout.by_row else passes().split_planes
        scalar = np.float32 if output.dtype == torch.float32 else np.float64
        self.arguments = (
            *_arrays(output, self.grad, pairs.weight.table.view(-1, groups, channels), input_inverse, input_norm),
            scalar(pairs.weight.floor),
            scalar(torch.finfo(output.dtype).eps),
            program.steps if len(program.steps) else None,
            program.constants,
            program.asks_for_sin,
            program.asks_for_norms,
            np.array([(half.length, half.direction, half.writes, half.has_sums) for half in halves]),
            *_arrays(*self.targets, self.by_weight, self.by_input),
        )

    def run(self, rows: slice | None = None) -> None:
        """Split these rows, or all."""
        first, last = (0, len(self.grad)) if rows is None else (rows.start, rows.stop)
        threads = min(len(self.by_weight), _threads(self.grad[first:last]))
        _share_out(self.kernel, threads, *self.arguments, first=first, last=last)

    def for_weight(self) -> tuple[Tensor | None, Tensor | None]:
        """D∘g and the sums of all that was split."""
        sums = self.by_weight.sum(0).to(self.grad.dtype).view(self.pairs.weight.norms.value.shape)
        half = self.program.weight
        return self._turned(half, self.targets[0]), sums if half.has_sums else None

    def for_input(self) -> tuple[Tensor | None, Tensor | None]:
        """D∘g and the sums."""
        half, target = self.program.input, self.targets[0 if self.program.same else 1]
        sums = self.layout.undo_norms(self.by_input, self.pairs.input.value)
        return self._turned(half, target), sums if half.has_sums else None

    def _turned(self, half: Half, target: Tensor) -> Tensor | None:
        return None if half.turn == 0.0 else self.layout.undo_pairs(target if half.writes else self.grad)


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


def norms(square: Tensor) -> tuple[Tensor, Tensor]:
    """`pairs.Norms.of`."""
    flat = square.contiguous().view(-1)
    results = flat.new_empty(2, len(flat))
    _share_out(passes().norms, _threads(flat), *_arrays(flat, results))
    value, inverse = results.unbind()
    return value.view(square.shape), inverse.view(square.shape)


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


def serves_lstm(*tensors: Tensor) -> bool:
    """Whether `lstm_step` and `lstm_step_back` take them."""
    return tensors[0].dtype == torch.float32 and tensors[0].dim() == 2 and serves(*tensors)


def lstm_step(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    """i, f, g, o, tanh c', h' and c'."""
    results = cell.new_empty(7, *cell.shape)
    _share_out(lstm().step, _threads(input_gates), *_arrays(input_gates, hidden_gates, cell, results))
    return results.unbind()


def lstm_step_back(kept: tuple[Tensor, ...], grad: tuple[Tensor, ...], into: Tensor) -> Tensor:
    """The gradient of the cell before; those of the gates are written."""
    before = torch.empty_like(grad[1], memory_format=torch.contiguous_format)
    _share_out(lstm().step_back, _threads(into), *_arrays(*kept, *grad, into, before))
    return before


class _Layout:
    """How pairs and the norms of the data vectors lie in the arrays of a pass, of rows or of planes."""

    def __init__(self, output: Tensor) -> None:
        self.shape = output.shape
        self.channels_last = output.dim() > 2 and not output.is_contiguous() and _last(output).is_contiguous()
        self.by_row = output.dim() == 2 or self.channels_last

    def of_pairs(self, t: Tensor) -> Tensor:
        if self.channels_last:
            return _last(t).contiguous().view(-1, *self.shape[1:3])
        return t.contiguous().unsqueeze(1) if self.by_row else t.contiguous().view(*self.shape[:3], -1)

    def of_norms(self, t: Tensor) -> Tensor:
        if self.channels_last:
            return _last(t).reshape(-1, self.shape[1])
        return t.contiguous() if self.by_row else t.reshape(*self.shape[:2], -1)

    def undo_pairs(self, t: Tensor) -> Tensor:
        return _first(t.view(_last_shape(self.shape))) if self.channels_last else t.view(self.shape)

    def undo_norms(self, t: Tensor, norms: Tensor) -> Tensor:
        return _first(t.view(_last_shape(norms.shape))) if self.channels_last else t.view(norms.shape)


def _last(t: Tensor) -> Tensor:
    """(batch, groups, channels, *spatial) as (batch, *spatial, groups, channels)."""
    return t.movedim((1, 2), (-2, -1))


def _first(t: Tensor) -> Tensor:
    return t.movedim((-2, -1), (1, 2))


def _last_shape(shape: torch.Size) -> tuple[int, ...]:
    return (shape[0], *shape[3:], *shape[1:3])


class _Memory:
    """A tensor's memory for NumPy. `Tensor.numpy` would forbid its storage to be resized ever after, as FSDP does."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, t: Tensor) -> None:
        self.tensor = t  # lives as long as the array
        size = t.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"<f{size}",
            "shape": tuple(t.shape),
            "strides": None if t.is_contiguous() else tuple(size * stride for stride in t.stride()),
            "data": (t.data_ptr(), False),
        }


def _arrays(*tensors: Tensor) -> Iterator[Any]:
    return (np.asarray(_Memory(t)) for t in tensors)


_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """A forked child has the pool but not its threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _threads(t: Tensor) -> int:
    """As many as torch uses, and no more than there are pieces to share out."""
    return 1 if t.numel() < _SMALL else min(torch.get_num_threads(), len(t))


def _share_out(
    kernel: Callable[..., None], threads: int, array: Any, *others: Any, first: int = 0, last: int | None = None
) -> None:
    """Run the kernel over the first axis of the array, or a part of it, in equal shares; the last on this thread."""
    global _pool
    last = len(array) if last is None else last
    if threads == 1:
        kernel(first, last, 0, array, *others)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="prproduct")
    bounds = itertools.pairwise(first + (last - first) * thread // threads for thread in range(threads + 1))
    *elsewhere, (share, here) = enumerate(bounds)
    try:
        running = [_pool.submit(kernel, *part, index, array, *others) for index, part in elsewhere]
    except RuntimeError:  # the interpreter shuts down, and starts no more threads
        running = []
        kernel(first, here[0], 0, array, *others)
    kernel(*here, share, array, *others)
    for future in running:
        future.result()
