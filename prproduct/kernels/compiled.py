"""When the compiled passes serve, and on which threads they run.

They take float32 and float64 on the CPU, in eager mode, while no graph is built; elsewhere plain torch does the same.
They release the GIL and run on torch's own threads, asked for through its OpenMP, or where that is not found and in
forked children on a small pool of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from prproduct.kernels.compiler import STAND_IN

_SMALL = 2**16  # numbers below which another thread costs more than it saves, and
_SMALL_FOR_OURS = 2**19  # those below which a thread of our own does
_LONG = 2**23  # numbers that take longer than torch's threads wait for more work
_switched_on = True
_forked = False
_DTYPES = {torch.float32, torch.float64}


@functools.cache
def passes() -> Any:
    """The kernels, loaded when first needed; None on platforms that have no LLVM."""
    try:
        from prproduct.kernels import passes
    except ImportError:
        return None
    return passes


@functools.cache
def conductor() -> Any:
    """What runs them one after the other."""
    from prproduct.kernels.compiler.entries import Conductor

    return Conductor()


@functools.cache
def program_passes() -> Any:
    """What performs a product's program."""
    from prproduct.kernels import program_passes

    return program_passes


@functools.cache
def convolution_passes() -> Any:
    """Those of convolutions."""
    from prproduct.kernels import convolution_passes

    return convolution_passes


@functools.cache
def channels_last_passes() -> Any:
    """Those of convolutions with channels last."""
    from prproduct.kernels import channels_last_passes

    return channels_last_passes


@functools.cache
def depthwise_passes() -> Any:
    """Those of depthwise convolutions."""
    from prproduct.kernels.depthwise import passes

    return passes


@functools.cache
def depthwise_split() -> Any:
    """What these call for a plane's pairs."""
    from prproduct.kernels.depthwise import split

    return split


@functools.cache
def depthwise_moves() -> Any:
    """What they call to move numbers and to add them up."""
    from prproduct.kernels.depthwise import moves

    return moves


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


def serves(*tensors: Tensor | None) -> bool:
    """Whether these are what the kernels take, here and now; None stands for a tensor that is not there."""
    first = tensors[0]
    if (
        first is None
        or first.dtype not in _DTYPES
        or not _switched_on
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()  # somebody records the operations
        or forward_ad._current_level >= 0
    ):
        return False
    dtype, plain, keys_of = first.dtype, _plain_keys(), torch._C._dispatch_keys
    for t in tensors:  # in one loop: it runs before every small layer's backward
        if t is not None and (
            t.dtype is not dtype or type(t) not in _ORDINARY or keys_of(t).raw_repr() != plain or t.numel() == 0
        ):
            return False
    return passes() is not None


_ORDINARY = (Tensor, torch.nn.Parameter)


@functools.cache
def _plain_keys() -> int:
    """Of a tensor whose memory is what it says: on the CPU, dense, neither negated nor zero by a flag, nor wrapped."""
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()


def threads_for(numbers: int, pieces: int) -> int:
    """As many as torch uses, where there are numbers enough, and no more than there are pieces to share out.

    Torch's threads go on spinning for a while after each operation. They take work at once; threads of our own would
    wait for their cores: two took as long as one (4.0 and 4.2 ms for 2²¹ pairs). So only as many as have cores left.
    """
    if numbers < _SMALL:
        return 1
    threads = torch.get_num_threads()
    if openmp() is None and numbers < _LONG:
        threads = 1 if numbers < _SMALL_FOR_OURS else min(threads, 1 + max(0, _cores() - threads))
    return max(1, min(threads, pieces))


def openmp() -> tuple[Any, int, int, int] | None:
    """What runs a function on the threads of torch's own OpenMP, and where a thread finds its number, their count, and
    a barrier at which it waits for the others.

    None where it cannot be found, and in a forked child.
    """
    return None if _forked else _addresses_of_openmp()


@functools.cache
def _addresses_of_openmp() -> tuple[Any, int, int, int] | None:
    folder = Path(torch.__file__).parent
    patterns = [f"{place}/lib{name}*" for place in ("lib", "../torch.libs") for name in ("gomp", "iomp5", "omp")]
    for path in itertools.chain.from_iterable(folder.glob(pattern) for pattern in patterns):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # if torch has loaded it
            parallel = library.GOMP_parallel
            others = (library.omp_get_thread_num, library.omp_get_num_threads, library.GOMP_barrier)
        except (OSError, AttributeError):
            continue
        parallel.argtypes, parallel.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint), None
        number, count, barrier = (int(ctypes.cast(f, ctypes.c_void_p).value or 0) for f in others)
        return parallel, number, count, barrier
    return None


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LARGE = 2**20  # bytes: memory below is quickly had
_KEPT = 2  # pieces of memory, as a backward needs them
_spare = threading.local()


def borrow(like: Tensor, count: int) -> Tensor:
    """Memory for so many numbers of a tensor's type, until `give_back`.

    The system hands out large memory anew each time and clears it page by page: 8 MB take 2 ms, as long as a pass over
    them. So each thread keeps the largest pieces that it had for the next backward.
    """
    if count * like.element_size() < LARGE:
        return like.new_empty(count)
    pieces = vars(_spare).get(str(like.dtype), [])
    for place, piece in enumerate(pieces):
        if len(piece) >= count:
            return pieces.pop(place)
    return like.new_empty(count)


def give_back(*pieces: Tensor) -> None:
    """Whoever borrowed them needs them no more."""
    for piece in pieces:
        if len(piece) * piece.element_size() >= LARGE:
            kept = vars(_spare).setdefault(str(piece.dtype), [])
            kept.append(piece)
            kept.sort(key=len)
            del kept[:-_KEPT]


_pool: ThreadPoolExecutor | None = None


def _forget_threads() -> None:
    """A forked child has the pool and OpenMP's team, but not their threads."""
    global _pool, _forked
    _pool, _forked = None, True


os.register_at_fork(after_in_child=_forget_threads)


class Phase(NamedTuple):
    """A pass (`compiler.entries.Entry`) over a range, with its integers.

    A share of it begins when its thread is done with the pass before, or if it `waits`, when all are. It is left out,
    with all that follow, if the float64 at the address `unless` is not 0 then.
    """

    kernel: Any
    first: int
    last: int
    integers: Sequence[int]
    waits: bool = False
    unless: int = 0


def stand_in(index: int) -> int:
    """What stands for one of the numbers that a score will be played with; offsets may be added to it."""
    return (index + 1) * STAND_IN


class Score:
    """Passes to be run one after the other, written down once and played with other memory each time.

    Wherever they have `stand_in(k)` plus an offset, `play` puts the kth of its numbers plus that offset.
    """

    def __init__(self, *phases: Phase) -> None:
        self.phases = phases
        table: list[int] = []
        for kernel, first, last, given, waits, unless in phases:
            table += (kernel.address, waits, len(given), unless, first, last, *given)
            if len(given) != kernel.integers:
                raise TypeError(f"{kernel.__name__} takes {kernel.integers} integers, not {len(given)}")
        self.table = (ctypes.c_int64 * len(table))(*table)
        self.address = ctypes.addressof(self.table)

    def play(self, threads: int, *given: int) -> None:
        """Run the passes, each in as many shares as there are threads."""
        runtime = openmp() if threads > 1 else _ALONE
        if runtime is None:
            _on_our_pool(threads, self.phases, given)
            return
        parallel, *places = runtime
        team = _PACK[len(given)](*places, threads, len(self.phases), self.address, *given)
        leader = conductor()
        if parallel is None:
            leader.call(team)
        else:
            parallel(leader.address, team, threads, 0)


_ALONE = (None, 0, 0, 0)
_PACK = [struct.Struct(f"{6 + given}q").pack for given in range(40)]


def in_turn(threads: int, *phases: Phase) -> None:
    """Run passes one after the other, each in as many shares as there are threads."""
    Score(*phases).play(threads)


def share_out(kernel: Any, threads: int, first: int, last: int, *integers: int) -> None:
    """Run a pass on a range in equal shares, one of them on this thread."""
    if len(integers) != kernel.integers:
        raise TypeError(f"{kernel.__name__} takes {kernel.integers} integers, not {len(integers)}")
    _score_of(kernel).play(threads, first, last, *integers)


@functools.cache
def _score_of(kernel: Any) -> Score:
    """One pass, with a stand-in for each of its numbers."""
    first, last, *integers = map(stand_in, range(2 + kernel.integers))
    return Score(Phase(kernel, first, last, integers))


def _on_our_pool(threads: int, phases: Sequence[Phase], given: Sequence[int]) -> None:
    """What `entries.conduct` does."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="prproduct")
    for phase in phases:
        kernel, numbers = phase.kernel, (phase.unless, phase.first, phase.last, *phase.integers)
        unless, first, last, *integers = (
            given[number // STAND_IN - 1] + number % STAND_IN if number >= STAND_IN else number for number in numbers
        )
        if unless and ctypes.c_double.from_address(unless).value != 0.0:
            return
        packed = kernel.pack(*integers)
        bounds = itertools.pairwise(first + (last - first) * share // threads for share in range(threads + 1))
        *elsewhere, (share, here) = enumerate(bounds)
        running = []
        for index, (start, end) in elsewhere:
            try:
                running.append(_pool.submit(kernel.call, start, end, index, packed))
            except RuntimeError:  # the interpreter shuts down, and starts no more threads
                kernel.call(start, end, index, packed)
        kernel.call(*here, share, packed)
        for future in running:
            future.result()


def serves_lstm(*tensors: Tensor) -> bool:
    """Whether `lstm_step` and `lstm_step_back` take them."""
    return tensors[0].dtype == torch.float32 and tensors[0].dim() == 2 and serves(*tensors)


def lstm_step(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    """i, f, g, o, tanh c', h' and c'."""
    rows, hidden = cell.shape
    results = cell.new_empty(7, rows, hidden)
    tensors = [_by_rows(t) for t in (input_gates, hidden_gates, cell)]
    where = itertools.chain.from_iterable((t.data_ptr(), t.stride(0)) for t in tensors)
    threads = threads_for(input_gates.numel(), rows)
    work = cell.new_empty(threads * lstm().WORK * hidden)
    share_out(lstm().step[4], threads, 0, rows, rows, hidden, *where, results.data_ptr(), work.data_ptr())
    return results.unbind()


def lstm_step_back(kept: tuple[Tensor, ...], grad: tuple[Tensor, ...], into: Tensor) -> Tensor:
    """The gradient of the cell before; those of the gates are written."""
    before = torch.empty_like(grad[1], memory_format=torch.contiguous_format)
    rows, hidden = before.shape
    tensors = [*(_by_rows(t) for t in (*kept, *grad)), into, before]
    where = itertools.chain.from_iterable((t.data_ptr(), t.stride(0)) for t in tensors)
    share_out(lstm().step_back[4], threads_for(into.numel(), rows), 0, rows, hidden, *where)
    return before


def _by_rows(t: Tensor) -> Tensor:
    """Each row in one piece."""
    return t if t.stride(1) == 1 else t.contiguous()
