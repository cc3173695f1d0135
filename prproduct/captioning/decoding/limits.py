"""What a caption must not say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prproduct.lab.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Words that are not allowed, by place.

    A caption that has not ended after `maximum` words is cut off there. With fewer than `minimum` words it does not
    end, unless nothing else is left to say. `unknown` is an id that is never said, as that of UNK.

    >>> Limits(minimum=2, unknown=3)
    Limits(maximum=16, minimum=2, unknown=3, block_trigrams=False)
    """

    maximum: int = 16
    minimum: int = 0
    unknown: int | None = None
    block_trigrams: bool = False  # no three words in the same order twice

    def __post_init__(self) -> None:
        if self.maximum < 1:
            raise InputError(f"captions of at most {self.maximum} words; it must be at least 1")
        if not 0 <= self.minimum <= self.maximum:
            raise InputError(f"captions of at least {self.minimum} words; it must be from 0 to {self.maximum}")
        if self.unknown is not None and self.unknown < 1:
            raise InputError(f"a word with id {self.unknown} that is never said; the ids of words begin with 1")

    def apply(self, scores: Tensor, said: Tensor) -> Tensor:
        """The scores (rows, vocabulary) with −∞ for what is not allowed after `said` (rows, words)."""
        words = said.shape[1]
        blocking = self.block_trigrams and words > 2
        if not blocking and self.unknown is None and words >= self.minimum:
            return scores
        if self.unknown is not None and self.unknown >= scores.shape[1]:
            raise InputError(f"a word with id {self.unknown} that is never said, in a vocabulary of {scores.shape[1]}")
        allowed = scores.clone()
        if self.unknown is not None:
            allowed[:, self.unknown] = -torch.inf
        if blocking:
            again = (said[:, :-2] == said[:, -2, None]) & (said[:, 1:-1] == said[:, -1, None])  # the last two, earlier
            rows, places = again.nonzero(as_tuple=True)
            allowed[rows, said[rows, places + 2]] = -torch.inf
        if words < self.minimum:
            silent = allowed[:, 1:].isneginf().all(1)
            allowed[:, 0] = torch.where(silent, allowed[:, 0], -torch.inf)
        return allowed


NO_LIMITS = Limits()
