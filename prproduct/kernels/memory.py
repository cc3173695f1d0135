"""Memory that is kept from one backward for the next: to get it anew takes as long as a pass over it."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from torch import Tensor

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


class Desk:
    """Memory in which the passes of one score work: its address, and its first number, by which they answer."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.address = self.memory.data_ptr()
        self.answer = ctypes.c_double.from_address(self.address)
        self.views: dict[Any, Any] = {}  # on its memory, by whatever they are known

    def tensor(self, like: Tensor, start: int, format: torch.memory_format) -> Tensor:
        """A tensor of this shape and type, from so many bytes on."""
        strides = torch.empty_like(like, memory_format=format, device="meta").stride()
        numbers = self.memory[start : start + like.nbytes].view(like.dtype)
        return numbers.as_strided(like.shape, strides)


def take_desk(size: int) -> Desk:
    """One with so many bytes, until `give_back_desk`."""
    try:
        desk: Desk = _spare.desks.pop()
    except (AttributeError, IndexError):
        return Desk(size)
    return desk if desk.size >= size else Desk(size)


def give_back_desk(desk: Desk) -> None:
    """For this thread's next backward."""
    try:
        _spare.desks.append(desk)
    except AttributeError:  # the thread's first
        _spare.desks = [desk]
