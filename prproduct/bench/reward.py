"""The row of the caption reward: CIDEr-D from tensors, with pycocoevalcap's CIDEr in the place of a native layer.

It depends on no product, dtype or compiler, so that its row is the same under every option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from prproduct.bench.profiling import CPP
from prproduct.bench.results import NOT_ASKED_FOR, Row
from prproduct.bench.timing import AGAIN, NATIVE, OURS, Budget, time_interleaved
from prproduct.captioning.metrics.speed import reward_calls


@dataclass(frozen=True)
class _Call:
    call: Callable[[], object]

    def prepare(self) -> None:
        """Do nothing: the captions are ready on both sides."""

    def __call__(self) -> None:
        self.call()


@dataclass(frozen=True)
class RewardCase:
    """Six sampled captions of up to 16 words for each of `images` images, with five references each."""

    group: str = "reward"
    name: str = "CIDEr-D of 64×6 captions, beside pycocoevalcap"
    images: int = 64
    target: float = 1 / 100

    def measure(self, budget: Budget) -> Row:
        """Measure and return the row; InputError if pycocoevalcap is not installed."""
        ours, theirs = reward_calls(self.images)
        steps = {NATIVE: _Call(theirs), OURS: _Call(ours), AGAIN: _Call(theirs)}
        # No minimum time: ours is so short that it would take hundreds of rounds, with 0.5 s of pycocoevalcap in each.
        times = time_interleaved(steps, replace(budget, seconds=0.0))
        return Row(
            group=self.group,
            name=self.name,
            path=CPP,
            seconds=dict(times.seconds),
            target=self.target,
            saved_native=None,
            saved_ours=None,
            without_reference=NOT_ASKED_FOR,
            waited=times.waited,
        )
