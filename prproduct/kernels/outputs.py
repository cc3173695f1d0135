"""Outputs that backward finds again, though nothing is kept for it.

BatchNorm, GELU and attention keep what they are given, for their own backward. A layer before them that remembers where
its output lies can read p off it there. Where something was added to the output, and others keep the sum and what was
added, p is their difference (`sums.py`). What nobody keeps is gone, and has to be computed again.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.compiler import is_compiling
from torch.multiprocessing.reductions import StorageWeakRef

from prproduct.kernels.sums import NOTHING, Found, Partner, find_elsewhere


class Remembered:
    """Where an output lies: its memory is not kept alive by it, until a backward begins.

    The witness has the output's version counter, which tells whether somebody wrote into it, but not its memory.

    >>> output = torch.ones(2, 3)
    >>> witness = output.detach()
    >>> witness.data = torch.empty(0)
    >>> remembered = Remembered(output, witness)
    >>> remembered.find().output.shape
    torch.Size([2, 3])
    >>> del output
    >>> remembered.find().output is None
    True
    """

    chances = 8  # backwards of other graphs, through which an output is looked for
    held: UntypedStorage | None = None
    elsewhere = NOTHING
    partner: Partner | None = None

    def __init__(self, output: Tensor, witness: Tensor) -> None:
        storage = output.untyped_storage()
        self.reference, self.bytes = StorageWeakRef(storage), storage.nbytes()
        self.offset, self.shape, self.strides = output.storage_offset(), output.shape, output.stride()
        self.dtype, self.device = output.dtype, output.device
        self.witness, self.version = witness, witness._version
        not_held.append(weakref.ref(self))

    @property
    def writes(self) -> int:
        """How often the output has been written into."""
        return self.witness._version - self.version

    def lies_in(self, tensor: Tensor) -> bool:
        """Whether this is what it has become: it is still there, in the same memory."""
        storage = self._storage()
        return storage is not None and storage.data_ptr() == tensor.untyped_storage().data_ptr()

    def find(self) -> Found:
        """The output, if somebody keeps it, or a sum to which it was added; and hold it no longer."""
        self.chances = 1  # the next backward may be another of this graph
        not_held.append(weakref.ref(self))
        storage, self.held = self.held or self._storage(), None
        elsewhere, self.elsewhere = self.elsewhere, NOTHING
        if elsewhere.output is not None or storage is None or self.writes:
            return elsewhere
        if storage.nbytes() != self.bytes:  # some free memory by taking its size away
            return elsewhere
        here = torch.empty(0, dtype=self.dtype, device=self.device)
        return Found(here.set_(storage, self.offset, self.shape, self.strides), itself=True)

    def hold(self) -> bool:
        """Keep it from now on, until it is looked for; whether it is still there, as it was."""
        if not self.writes:
            self.held = self._storage()
        return self.held is not None and self.held.nbytes() == self.bytes

    def _storage(self) -> UntypedStorage | None:
        return UntypedStorage._new_with_weak_ptr(self.reference.cdata)


class Habit:
    """Whether a layer keeps its output: not until a backward shows what became of it.

    If it was nowhere to be found, it is kept from then on. So it is if somebody else keeps it as it is: then it costs
    no memory here, and to remember it takes 0.1 ms with cold caches. Not if it can be told from what others keep. Rows
    of a linear layer are kept from the beginning if they are few. Inside `torch.utils.checkpoint`, which forgets all
    that is kept, and wants to see the same kept again, outputs are always kept.

    A layer that is called several times, and takes one of its outputs as a difference, never keeps any: a kept output
    would be another in its last digits, and what a run gives must not depend on what was learned before.
    """

    def __init__(self) -> None:
        self.learned = self.takes_differences = False

    def learn(self, found: Found, worth_keeping: bool) -> None:
        """From what became of an output that was not kept, and whether keeping it would have helped."""
        self.takes_differences |= found.addend is not None
        kept_here = found.itself or (worth_keeping and found.output is None)
        self.learned = not self.takes_differences and (self.learned or kept_here)

    def keeps(self, output: Tensor, convolution: bool) -> bool:
        """This output, of a convolution or a linear layer."""
        return self.learned or (not convolution and output.nbytes < _FEW) or _in_checkpoint()

    def __fx_create_arg__(self, tracer: Any) -> str:
        """A graph that torch.fx has traced has no layers to learn."""
        return "save"


_FEW = 2**20  # bytes


def _in_checkpoint() -> bool:
    hooks = _top_saved_tensors_default_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


not_held: deque[weakref.ref[Remembered]] = deque(maxlen=2**14)  # what falls out of it may have to be computed again


def hold_what_is_left(node: Any) -> None:
    """For a layer's backward to call, with its node: the layers before it will need their outputs soon.

    Whoever keeps such an output lets go of it at the end of its own backward, just before the layer looks for it. So
    the first layer that is asked in a backward does this for all of them. What belongs to other graphs is left to their
    own, but not for ever: a graph may live on in a list of losses.
    """
    backward = torch._C._current_graph_task_id()
    if getattr(_last, "backward", None) == backward or is_compiling():
        return
    _last.backward = backward
    lost: set[Remembered] = set()
    for _ in range(len(not_held)):
        try:
            remembered = not_held.popleft()()
        except IndexError:  # another thread was faster
            break
        if remembered is not None and not remembered.hold():
            lost.add(remembered)
    if lost:
        try:
            others = find_elsewhere(node, lost)
        except Exception as error:  # a graph of another torch than we know: nobody's backward is to end with it
            warnings.warn(f"outputs cannot be looked for ({error!r}): they are computed again", stacklevel=2)
            return
        for other in others:
            other.chances -= 1
            if other.chances > 0:
                not_held.append(weakref.ref(other))


_last = threading.local()  # which backward that was
