"""Beam search for many images at once.

At each step the `beams` best unfinished hypotheses of an image are extended by every word, and the extensions are
ranked by their sum of log-probabilities. Extensions among the best `beams` that end are finished captions; the best
`beams` that do not end are kept. Finished captions are ranked by that sum divided by (words + 1)^length_power.
Log-probabilities are never positive, so an image is done, and dropped from the computation without any loss, when no
hypothesis can become better than its `n_best` finished captions.

Hypotheses of the maximum length are truncated captions. They rank behind all finished captions, and so are returned
only if fewer than `n_best` finished.

Ties: first the extension of the better hypothesis, then that with the lower word id; of finished captions, the one that
was found earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prproduct.captioning.decoding.stepwise import NO_LIMITS, Captions, Decoder, Limits
from prproduct.captioning.model import Memory, State
from prproduct.lab.errors import InputError

LARGEST_POWER = 10  # of lengths; above some 250, a length to this power is no floating-point number


@torch.no_grad()
def beam(
    model: Decoder,
    memory: Memory,
    *,
    beams: int = 5,
    n_best: int = 1,
    length_power: float = 0.0,
    limits: Limits = NO_LIMITS,
) -> Captions:
    """The `n_best` best captions of each image that a search with `beams` beams finds.

    Finished captions come first, then those truncated by `limits`. The log-probabilities are the model's, regardless of
    `limits`.

    >>> from prproduct.captioning.model import Captioner
    >>> model = Captioner(9, 6, hidden=4, embedding=4, attention=4).eval()
    >>> memory = model.encode(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    >>> beam(model, memory, beams=3, n_best=2).scores.shape
    torch.Size([2, 2])
    """
    check_beams(beams, length_power)
    if n_best < 1:
        raise InputError(f"the {n_best} best captions; it must be at least 1")
    search = _Search.begin(model, memory)
    found = _Found.none(search.live, n_best, limits.longest)
    active = torch.arange(memory.images, device=memory.present.device)
    for length in range(1, limits.longest + 1):
        if len(active) == 0:
            break
        ended, search = search.extended(model, limits, beams)
        found.add(active, ended, length**length_power)
        if length == limits.longest:
            found.add(active, search.live, length**length_power, behind=True)
        bound = search.live.totals[:, 0] / limits.longest**length_power  # no later caption can score higher
        unfinished = found.scores[active, -1] < bound
        if not unfinished.all():
            active, search = active[unfinished], search.select(unfinished)
    return Captions(found.words, found.log_probabilities, found.attention, found.scores)


def check_beams(beams: int, length_power: float) -> None:
    """Raise InputError for settings that no search can have."""
    if beams < 1:
        raise InputError(f"{beams} beams; there must be at least 1")
    if not 0 <= length_power <= LARGEST_POWER:
        raise InputError(f"a length power of {length_power}; it must be from 0 to {LARGEST_POWER}")


@dataclass(frozen=True, eq=False)
class _Hypotheses:
    """Partial or finished captions of each image, best first; an empty slot has a total of −∞."""

    totals: Tensor  # (images, k)
    words: Tensor  # (images, k, steps)
    log_probabilities: Tensor  # (images, k, steps)
    attention: Tensor  # (images, k, steps, regions)

    def take(self, indices: Tensor) -> _Hypotheses:
        """Those at `indices` (images, j) of each image."""
        return self.select((torch.arange(len(indices), device=indices.device)[:, None], indices))

    def select(self, index: Tensor | tuple[Tensor, ...]) -> _Hypotheses:
        """All fields at an index of their first dimensions."""
        return _Hypotheses(*(tensor[index] for tensor in vars(self).values()))

    def only(self, where: Tensor) -> _Hypotheses:
        """The same with the slots emptied where `where` is False."""
        return replace(self, totals=self.totals.masked_fill(~where, -torch.inf))


@dataclass(frozen=True, eq=False)
class _Search:
    """The state of the search for the images that are not done."""

    memory: Memory
    state: State  # (images · k, …)
    live: _Hypotheses

    @classmethod
    def begin(cls, model: Decoder, memory: Memory) -> _Search:
        """One empty hypothesis for each image."""
        images, regions = memory.present.shape
        totals = memory.regions.new_zeros(images, 1, dtype=torch.promote_types(memory.regions.dtype, torch.float32))
        words = totals.new_zeros(images, 1, 0, dtype=torch.long)
        attention = memory.regions.new_zeros(images, 1, 0, regions)
        return cls(memory, model.begin(memory), _Hypotheses(totals, words, totals.new_zeros(images, 1, 0), attention))

    def select(self, images: Tensor) -> _Search:
        """The search for the images where a mask is True."""
        rows = images.repeat_interleave(self.live.totals.shape[1])
        return _Search(self.memory.select(images), self.state.select(rows), self.live.select(images))

    def extended(self, model: Decoder, limits: Limits, beams: int) -> tuple[_Hypotheses, _Search]:
        """Extend all hypotheses by a word: the captions that finish, and the search with those that do not."""
        images, k, length = self.live.words.shape
        prefixes = self.live.words.flatten(0, 1)
        last = prefixes[:, -1] if length else prefixes.new_zeros(images * k)
        logits, state, attention = model.step(last, self.state, self.memory)
        scores = logits.to(self.live.totals.dtype).log_softmax(-1)  # (images · k, vocabulary)
        totals = limits.apply(scores, prefixes).view(images, k, -1) + self.live.totals[..., None]
        # Each hypothesis has one extension that ends, so at least half of the best 2 · beams do not end.
        best, indices = _top(totals.flatten(1), 2 * beams)
        own = scores.view(images, -1).gather(1, indices)
        parents, words = indices // logits.shape[-1], indices % logits.shape[-1]
        rows = torch.arange(images, device=parents.device)[:, None] * k + parents  # (images, 2 · beams)
        before = self.live.take(parents)
        after = _Hypotheses(
            best,
            torch.cat([before.words, words[..., None]], 2),
            torch.cat([before.log_probabilities, own[..., None]], 2),
            torch.cat([before.attention, attention[rows][:, :, None]], 2),
        )
        ends = words == 0
        among_best = torch.arange(ends.shape[1], device=ends.device) < beams
        kept = ends.long().argsort(dim=1, stable=True)[:, :beams]
        search = _Search(self.memory, state.select(rows.gather(1, kept).flatten()), after.only(~ends).take(kept))
        return after.only(ends & among_best), search


@dataclass(frozen=True, eq=False)
class _Found:
    """The best finished captions of each image so far, best first; updated in place."""

    scores: Tensor  # (images, n_best)
    words: Tensor  # (images, n_best, longest)
    log_probabilities: Tensor  # (images, n_best, longest)
    attention: Tensor  # (images, n_best, longest, regions)

    @classmethod
    def none(cls, like: _Hypotheses, n_best: int, longest: int) -> _Found:
        """Empty captions with a score of −∞."""
        shape, regions = (len(like.totals), n_best, longest), like.attention.shape[-1]
        return cls(
            like.totals.new_full(shape[:2], -torch.inf),
            like.words.new_zeros(shape),
            like.totals.new_zeros(shape),
            like.attention.new_zeros(*shape, regions),
        )

    def add(self, images: Tensor, captions: _Hypotheses, divisor: float, *, behind: bool = False) -> None:
        """Merge captions of some images by their scores; of equal scores, those already there stay first.

        With `behind` they come into empty slots only, behind all finished captions.
        """
        scores, own = captions.totals / divisor, self.scores[images]
        ranks = own.masked_fill(own.isfinite(), torch.inf) if behind else own
        order = torch.cat([ranks, scores], 1).argsort(dim=1, descending=True, stable=True)[:, : self.scores.shape[1]]
        owners = torch.arange(len(images), device=images.device)[:, None]
        self.scores[images] = torch.cat([own, scores], 1).gather(1, order)
        for name in ("words", "log_probabilities", "attention"):
            mine, theirs = getattr(self, name), getattr(captions, name)
            padded = mine.new_zeros(*theirs.shape[:2], *mine.shape[2:])
            padded[:, :, : theirs.shape[2]] = theirs
            mine[images] = torch.cat([mine[images], padded], 1)[owners, order]


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (rows, n) and their indices, descending; ties in the order of their indices."""
    count = min(count, scores.shape[1])
    values, indices = scores.topk(min(count + 1, scores.shape[1]))  # one more, to detect a tie with the next
    if values.shape[1] > count:
        tied = (values[:, count - 1] == values[:, count]) & ~values[:, count].isneginf()  # −∞ are empty slots
        values, indices = values[:, :count], indices[:, :count]
        if tied.any():  # torch.topk returns any of the tied elements
            ordered, order = scores[tied].sort(dim=1, descending=True, stable=True)
            values[tied], indices[tied] = ordered[:, :count], order[:, :count]
    indices, order = indices.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, order)
