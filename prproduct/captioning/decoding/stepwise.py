"""Decoding one word at a time: greedy and sampling; and what all decoders share (`Decoder`, `Captions`, `Limits`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.captioning.model import Memory, State, Step
from prproduct.lab.errors import InputError

ChooseWord = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (logits, prefixes) -> (words, log-probabilities)


class Decoder(Protocol):
    """A model that decodes word by word, such as a `Captioner`."""

    def begin(self, memory: Memory) -> State:
        """The state before the first word, one row for each image."""

    def step(self, words: Tensor, state: State, memory: Memory) -> Step:
        """One step after `words` (rows,); the rows of an image are consecutive, the same number for each image."""


@dataclass(frozen=True, eq=False)
class Captions:
    """Generated captions of each image; beam search returns the best first.

    A caption ends with its first 0, and is padded with 0; a caption without 0 was truncated. If fewer captions than
    requested exist, the rest are empty with a score of −∞.
    """

    words: Tensor  # (images, captions, steps), ids
    log_probabilities: Tensor  # (images, captions, steps), of each word and the end token; 0 after it
    attention: Tensor  # (images, captions, steps, regions), the attention weights; 0 after the end token
    scores: Tensor  # (images, captions): the sum of the log-probabilities, or what beam search orders by


@dataclass(frozen=True)
class Limits:
    """Constraints on the words of a caption.

    A caption is truncated after `longest` words. With fewer than `shortest` words it does not end, unless every other
    word is forbidden. The word `forbidden_id`, such as UNK, is never generated. `block_trigrams` forbids a sequence of
    three words to occur twice.

    >>> Limits(shortest=2, forbidden_id=3)
    Limits(longest=16, shortest=2, forbidden_id=3, block_trigrams=False)
    """

    longest: int = 16
    shortest: int = 0
    forbidden_id: int | None = None
    block_trigrams: bool = False

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise InputError(f"captions of at most {self.longest} words; it must be at least 1")
        if not 0 <= self.shortest <= self.longest:
            raise InputError(f"captions of at least {self.shortest} words; it must be from 0 to {self.longest}")
        if self.forbidden_id is not None and self.forbidden_id < 1:
            raise InputError(f"a word with id {self.forbidden_id} that is never said; the ids of words begin with 1")

    def apply(self, scores: Tensor, prefixes: Tensor) -> Tensor:
        """Scores (rows, vocabulary) with −∞ for the words that are forbidden after `prefixes` (rows, words)."""
        length = prefixes.shape[1]
        blocking = self.block_trigrams and length > 2
        if not blocking and self.forbidden_id is None and length >= self.shortest:
            return scores
        allowed, words = scores.clone(), scores.shape[1]
        if self.forbidden_id is not None:
            if self.forbidden_id >= words:
                raise InputError(f"a word with id {self.forbidden_id} that is never said, in a vocabulary of {words}")
            allowed[:, self.forbidden_id] = -torch.inf
        if blocking:  # forbid the words that followed the last two words earlier
            repeated = (prefixes[:, :-2] == prefixes[:, -2, None]) & (prefixes[:, 1:-1] == prefixes[:, -1, None])
            rows, starts = repeated.nonzero(as_tuple=True)
            allowed[rows, prefixes[rows, starts + 2]] = -torch.inf
        if length < self.shortest:
            no_word_left = allowed[:, 1:].isneginf().all(1)
            allowed[:, 0] = torch.where(no_word_left, allowed[:, 0], -torch.inf)
        return allowed


NO_LIMITS = Limits()


@torch.no_grad()
def greedy(model: Decoder, memory: Memory, *, limits: Limits = NO_LIMITS) -> Captions:
    """One caption for each image, of the most probable word at each step; of a tie, the word with the lowest id.

    The log-probabilities are the model's, regardless of `limits`.

    >>> from prproduct.captioning.model import Captioner
    >>> model = Captioner(9, 6, hidden=4, embedding=4, attention=4).eval()
    >>> memory = model.encode(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    >>> greedy(model, memory).words.shape
    torch.Size([2, 1, 16])
    """

    def most_probable(logits: Tensor, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = _at_least_float32(logits).log_softmax(-1)
        words = limits.apply(log_probabilities, prefixes).argmax(-1)
        return words, log_probabilities.gather(1, words[:, None])[:, 0]

    return _roll_out(model, memory, 1, limits, most_probable)


def sample(
    model: Decoder,
    memory: Memory,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    limits: Limits = NO_LIMITS,
) -> Captions:
    """`samples` captions for each image, drawn word by word from softmax(logits/temperature).

    The log-probabilities are of the distribution that was sampled, without the words that `limits` forbids. They have
    gradients, unless gradients are disabled.

    >>> from prproduct.captioning.model import Captioner
    >>> model = Captioner(9, 6, hidden=4, embedding=4, attention=4).eval()
    >>> memory = model.encode(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    >>> sample(model, memory, samples=5, generator=torch.Generator().manual_seed(0)).words.shape
    torch.Size([2, 5, 16])
    """
    if samples < 1:
        raise InputError(f"{samples} samples of each image; it must be at least 1")
    if not 0 < temperature < float("inf"):
        raise InputError(f"a temperature of {temperature}; it must be above 0: for the likeliest words use greedy")

    def draw(logits: Tensor, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = limits.apply(_at_least_float32(logits) / temperature, prefixes).log_softmax(-1)
        words = log_probabilities.detach().exp().multinomial(1, generator=generator)
        return words[:, 0], log_probabilities.gather(1, words)[:, 0]

    return _roll_out(model, memory, samples, limits, draw)


def _roll_out(model: Decoder, memory: Memory, captions: int, limits: Limits, choose: ChooseWord) -> Captions:
    """Generate `captions` captions per image with `choose`; an image is dropped once all of its captions ended."""
    (images, regions), device = memory.present.shape, memory.present.device
    words = torch.zeros(images * captions, limits.longest, dtype=torch.long, device=device)
    attention = torch.zeros(*words.shape, regions, device=device, dtype=memory.regions.dtype)
    columns: list[Tensor] = []  # log-probabilities (rows,) of each step; not one tensor, since they may have gradients
    rows = torch.arange(len(words), device=device)  # the rows of images that are not finished
    ended = torch.zeros_like(rows, dtype=torch.bool)
    state, last = model.begin(memory).repeat(captions), torch.zeros_like(rows)
    for step in range(limits.longest):
        if len(rows) == 0:
            break
        logits, state, weights = model.step(last, state, memory)
        last, log_probabilities = choose(logits, words[rows, :step])
        last = last.masked_fill(ended, 0)
        words[rows, step] = last
        attention[rows, step] = weights.detach().masked_fill(ended[:, None], 0).to(attention.dtype)
        log_probabilities = log_probabilities.masked_fill(ended, 0)
        columns.append(log_probabilities.new_zeros(len(words)).index_copy(0, rows, log_probabilities))
        ended = ended | (last == 0)
        unfinished = ~ended.view(-1, captions).all(1)
        if not unfinished.all():
            memory, unfinished = memory.select(unfinished), unfinished.repeat_interleave(captions)
            rows, ended, last, state = rows[unfinished], ended[unfinished], last[unfinished], state.select(unfinished)
    table = torch.stack(columns, 1) if columns else torch.zeros(len(words), 0, device=device)
    shape = (images, captions, limits.longest)
    table = F.pad(table, (0, limits.longest - len(columns))).view(shape)
    return Captions(words.view(shape), table, attention.view(*shape, regions), table.sum(-1))


def _at_least_float32(logits: Tensor) -> Tensor:
    """The logits in float32 or float64: in half precision the sum of a caption's log-probabilities is off by tenths."""
    return logits if logits.dtype == torch.float64 else logits.float()
