"""Beam search for many images at once.

The best `beams` beginnings of captions that did not end are continued by every word. Of all continuations of an image,
by the sum of log-probabilities, those among the best `beams` that end are found captions, and the best `beams` that do
not end go on. Found captions are ordered by that sum over (number of words and end)^length_power. An image is done when
no beginning can become better than its `n_best` found captions, since log-probabilities are never positive: it leaves
the computation, and nothing is lost.

Beginnings that are as long as allowed are cut captions. They come behind all found captions that ended, and so are
given back only where fewer than `n_best` did.

What stands first of equals: the continuation of the better beginning, then that by the lower id; the caption that was
found first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prproduct.captioning.decoding.captions import Captions, Decoder
from prproduct.captioning.decoding.limits import NO_LIMITS, Limits
from prproduct.captioning.layers import IN_CACHE
from prproduct.captioning.model import Memory, State
from prproduct.lab.errors import InputError


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
    """The `n_best` best captions that a search with so many beams finds for each image.

    Captions that ended come first, then those that `limits` cut. The log-probabilities are the model's, with or without
    limits.

    >>> from prproduct.captioning.model import Captioner
    >>> model = Captioner(9, 6, hidden=4, embedding=4, attention=4).eval()
    >>> memory = model.encode(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    >>> beam(model, memory, beams=3, n_best=2).scores.shape
    torch.Size([2, 2])
    """
    if beams < 1 or n_best < 1:
        raise InputError(f"{n_best} captions of {beams} beams; both must be at least 1")
    if not 0 <= length_power < float("inf"):
        raise InputError(f"a length power of {length_power}; it must be at least 0")
    search = _Search.begin(model, memory)
    found = _Found.none(search.live, n_best, limits.maximum)
    active = torch.arange(memory.images, device=memory.present.device)
    for length in range(1, limits.maximum + 1):
        if len(active) == 0:
            break
        ended, search = search.extended(model, limits, beams)
        found.add(active, ended, length**length_power)
        if length == limits.maximum:
            found.fill(active, search.live, length**length_power)
        bound = search.live.totals[:, 0] / limits.maximum**length_power  # the best that can still come
        going = found.scores[active, -1] < bound
        if not going.all():
            active, search = active[going], search.select(going)
    return Captions(found.words, found.log_probabilities, found.attention, found.scores)


@dataclass(frozen=True, eq=False)
class _Hypotheses:
    """Beginnings of captions, or captions, best first; a place that is empty has a total of −∞."""

    totals: Tensor  # (images, k)
    words: Tensor  # (images, k, steps)
    log_probabilities: Tensor  # (images, k, steps)
    attention: Tensor  # (images, k, steps, regions)

    def take(self, places: Tensor) -> _Hypotheses:
        """Those at `places` (images, j)."""
        return self.select((torch.arange(len(places), device=places.device)[:, None], places))

    def select(self, index: Tensor | tuple[Tensor, ...]) -> _Hypotheses:
        return _Hypotheses(*(tensor[index] for tensor in vars(self).values()))

    def only(self, where: Tensor) -> _Hypotheses:
        """With the other places empty."""
        return replace(self, totals=self.totals.masked_fill(~where, -torch.inf))


@dataclass(frozen=True, eq=False)
class _Search:
    """Where the search stands for the images that are not done."""

    memory: Memory
    state: State  # (images · k, …)
    live: _Hypotheses

    @classmethod
    def begin(cls, model: Decoder, memory: Memory) -> _Search:
        """One beginning for each image, without words."""
        images, regions = memory.present.shape
        totals = memory.regions.new_zeros(images, 1, dtype=torch.promote_types(memory.regions.dtype, torch.float32))
        words = totals.new_zeros(images, 1, 0, dtype=torch.long)
        attention = memory.regions.new_zeros(images, 1, 0, regions)
        return cls(memory, model.begin(memory), _Hypotheses(totals, words, totals.new_zeros(images, 1, 0), attention))

    def select(self, images: Tensor) -> _Search:
        """For some images, by a mask."""
        rows = images.repeat_interleave(self.live.totals.shape[1])
        return _Search(self.memory.select(images), self.state.select(rows), self.live.select(images))

    def extended(self, model: Decoder, limits: Limits, beams: int) -> tuple[_Hypotheses, _Search]:
        """By a word: the captions that end so, and the search that goes on."""
        images, k, length = self.live.words.shape
        said = self.live.words.flatten(0, 1)
        last = said[:, -1] if length else said.new_zeros(images * k)
        logits, state, looked = model.step(last, self.state, self.memory)
        # A beginning ends in one way only: of twice as many continuations at least half go on.
        best, places, own = self._continued(logits.view(images, k, -1), limits, 2 * beams)
        parents, words = places // logits.shape[-1], places % logits.shape[-1]
        rows = torch.arange(images, device=parents.device)[:, None] * k + parents  # (images, 2 · beams)
        before = self.live.take(parents)
        after = _Hypotheses(
            best,
            torch.cat([before.words, words[..., None]], 2),
            torch.cat([before.log_probabilities, own[..., None]], 2),
            torch.cat([before.attention, looked[rows][:, :, None]], 2),
        )
        ends = words == 0
        among_best = torch.arange(ends.shape[1], device=ends.device) < beams
        going = ends.long().argsort(dim=1, stable=True)[:, :beams]
        search = _Search(self.memory, state.select(rows.gather(1, going).flatten()), after.only(~ends).take(going))
        return after.only(ends & among_best), search

    def _continued(self, logits: Tensor, limits: Limits, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each image's continuations (beginnings · vocabulary) the best: totals, places, log-probabilities."""
        part = len(logits) if logits.is_cuda else max(1, IN_CACHE // max(1, logits[0:1].numel()))
        found = []
        for some, words, before in zip(
            logits.split(part), self.live.words.split(part), self.live.totals.split(part), strict=True
        ):
            own = some.to(before.dtype).log_softmax(-1)
            allowed = limits.apply(own.flatten(0, 1), words.flatten(0, 1)).view(own.shape)
            best, places = _top((before[..., None] + allowed).flatten(1), count)
            found.append((best, places, own.flatten(1).gather(1, places)))
        best, places, own = map(torch.cat, zip(*found, strict=True))
        return best, places, own


@dataclass(frozen=True, eq=False)
class _Found:
    """The best captions of each image so far, best first."""

    scores: Tensor  # (images, n_best)
    words: Tensor  # (images, n_best, maximum)
    log_probabilities: Tensor
    attention: Tensor

    @classmethod
    def none(cls, like: _Hypotheses, n_best: int, maximum: int) -> _Found:
        """Empty captions with a score of −∞."""
        shape, regions = (len(like.totals), n_best, maximum), like.attention.shape[-1]
        return cls(
            like.totals.new_full(shape[:2], -torch.inf),
            like.words.new_zeros(shape),
            like.totals.new_zeros(shape),
            like.attention.new_zeros(*shape, regions),
        )

    def add(self, images: Tensor, captions: _Hypotheses, divisor: float) -> None:
        """Put captions of some images among the others, behind those that are as good."""
        scores = captions.totals / divisor
        changed = scores.amax(1) > self.scores[images, -1]
        if changed.any():
            self._merge(images[changed], captions.select(changed), scores[changed], self.scores[images[changed]])

    def fill(self, images: Tensor, captions: _Hypotheses, divisor: float) -> None:
        """Put captions of some images behind all others, into places that are empty."""
        scores = captions.totals / divisor
        wanting = self.scores[images, -1].isneginf()
        if wanting.any():
            own = self.scores[images[wanting]]
            first = own.masked_fill(own.isfinite(), torch.inf)  # what is there stays in front, in its order
            self._merge(images[wanting], captions.select(wanting), scores[wanting], first)

    def _merge(self, images: Tensor, captions: _Hypotheses, scores: Tensor, ranks: Tensor) -> None:
        """Put captions among those of images, which are ranked by `ranks` (images, n_best), in place."""
        order = torch.cat([ranks, scores], 1).argsort(dim=1, descending=True, stable=True)[:, : self.scores.shape[1]]
        merged = torch.cat([self.scores[images], scores], 1)
        owners = torch.arange(len(images), device=images.device)[:, None]
        self.scores[images] = merged.gather(1, order)
        for name in ("words", "log_probabilities", "attention"):
            mine, theirs = getattr(self, name), getattr(captions, name)
            padded = mine.new_zeros(*theirs.shape[:2], *mine.shape[2:])
            padded[:, :, : theirs.shape[2]] = theirs
            mine[images] = torch.cat([mine[images], padded], 1)[owners, order]


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of each row (rows, n) and their places, in order; of equals, the first come first."""
    count = min(count, scores.shape[1])
    values, places = scores.topk(min(count + 1, scores.shape[1]))  # one more tells whether equals were left out
    tied = values[:, count - 1] == values[:, -1] if values.shape[1] > count else values[:, 0].isnan()
    tied &= ~values[:, -1].isneginf()
    values, places = values[:, :count], places[:, :count]
    if tied.any():  # torch.topk takes any of them
        ordered, order = scores[tied].sort(dim=1, descending=True, stable=True)
        values[tied], places[tied] = ordered[:, :count], order[:, :count]
    places, order = places.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
