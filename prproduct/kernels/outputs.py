"""Outputs that backward finds again, though nothing is kept for it.

BatchNorm, GELU and attention keep what they are given, for their own backward. A layer before them that remembers where
its output lies can read p off it there. What nobody keeps is gone, and has to be computed again.
"""

from __future__ import annotations

import weakref
from collections import deque

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef


class Remembered:
    """Where an output lies: its memory is not kept alive by it, until a backward begins.

    >>> output = torch.ones(2, 3)
    >>> remembered = Remembered(output)
    >>> remembered.find().shape
    torch.Size([2, 3])
    >>> del output
    >>> remembered.find() is None
    True
    """

    def __init__(self, output: Tensor) -> None:
        storage = output.untyped_storage()
        self.reference, self.bytes = StorageWeakRef(storage), storage.nbytes()
        self.offset, self.shape, self.strides = output.storage_offset(), output.shape, output.stride()
        self.dtype, self.device = output.dtype, output.device
        self.held: UntypedStorage | None = None
        _not_held.append(weakref.ref(self))

    def find(self) -> Tensor | None:
        """The same numbers, unless somebody wrote over them; None if nobody keeps them any more."""
        storage, self.held = self.held or self._storage(), None
        if storage is None or storage.nbytes() != self.bytes:  # some free memory by taking its size away
            return None
        here = torch.empty(0, dtype=self.dtype, device=self.device)
        return here.set_(storage, self.offset, self.shape, self.strides)

    def hold(self) -> None:
        """Keep it from now on, if it is still there, until it is looked for."""
        self.held = self._storage()

    def _storage(self) -> UntypedStorage | None:
        return UntypedStorage._new_with_weak_ptr(self.reference.cdata)


_not_held: deque[weakref.ref[Remembered]] = deque(maxlen=2**14)  # what falls out of it may have to be computed again


def hold_what_is_left() -> None:
    """For a layer's backward to call: the layers before it will need their outputs soon.

    Whoever keeps such an output lets go of it at the end of its own backward, just before the layer looks for it.
    """
    while _not_held:
        try:
            remembered = _not_held.popleft()()
        except IndexError:  # another thread was faster
            return
        if remembered is not None:
            remembered.hold()
