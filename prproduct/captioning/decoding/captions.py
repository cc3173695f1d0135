"""What decoding needs of a model, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from prproduct.captioning.model import Memory, State, Step


class Decoder(Protocol):
    """Something that goes from word to word, such as a `Captioner`."""

    def begin(self, memory: Memory) -> State:
        """The state before the first word, one row for each image."""

    def step(self, words: Tensor, state: State, memory: Memory) -> Step:
        """What comes after `words` (rows,); the rows of an image stand together, the same number for each."""


@dataclass(frozen=True, eq=False)
class Captions:
    """Some captions for each image, best first where they have an order.

    A caption ends with its first 0, and what stands behind it is 0. One without any was cut off. Where fewer than were
    asked for exist, the rest is empty, with a score of −∞.
    """

    words: Tensor  # (images, captions, steps), ids
    log_probabilities: Tensor  # (images, captions, steps), of each word and the end; 0 behind it
    attention: Tensor  # (images, captions, steps, regions), where each word looked; 0 behind the end
    scores: Tensor  # (images, captions), what they are ordered by; without an order, the sum of the log-probabilities
