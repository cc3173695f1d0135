"""One word after the other: the likeliest, or drawn.

Captions that ended leave the computation with their image, as soon as all captions of it have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prproduct.captioning.decoding.captions import Captions, Decoder
from prproduct.captioning.decoding.limits import NO_LIMITS, Limits
from prproduct.captioning.model import Memory
from prproduct.lab.errors import InputError

Choice = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # logits and what was said to words and log-probabilities


@torch.no_grad()
def greedy(model: Decoder, memory: Memory, *, limits: Limits = NO_LIMITS) -> Captions:
    """One caption for each image, of the likeliest word each time; of equally likely ones, that with the lowest id.

    The log-probabilities are the model's, with or without limits.

    >>> from prproduct.captioning.model import Captioner
    >>> model = Captioner(9, 6, hidden=4, embedding=4, attention=4).eval()
    >>> memory = model.encode(torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool))
    >>> greedy(model, memory).words.shape
    torch.Size([2, 1, 16])
    """

    def likeliest(logits: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = _wide(logits).log_softmax(-1)
        words = limits.apply(log_probabilities, said).argmax(-1)
        return words, log_probabilities.gather(1, words[:, None])[:, 0]

    return _roll_out(model, memory, 1, limits, likeliest)


def sample(
    model: Decoder,
    memory: Memory,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    limits: Limits = NO_LIMITS,
) -> Captions:
    """So many captions for each image, drawn word by word from softmax(logits/temperature).

    The log-probabilities are those of the distribution that was drawn from, without what the limits forbid. They can be
    differentiated, unless gradients are switched off.

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

    def draw(logits: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = limits.apply(_wide(logits) / temperature, said).log_softmax(-1)
        words = log_probabilities.detach().exp().multinomial(1, generator=generator)
        return words[:, 0], log_probabilities.gather(1, words)[:, 0]

    return _roll_out(model, memory, samples, limits, draw)


def _roll_out(model: Decoder, memory: Memory, captions: int, limits: Limits, choose: Choice) -> Captions:
    (images, regions), device = memory.present.shape, memory.present.device
    words = torch.zeros(images * captions, limits.maximum, dtype=torch.long, device=device)
    attention = torch.zeros(*words.shape, regions, device=device, dtype=memory.regions.dtype)
    columns: list[Tensor] = []  # of log-probabilities, which may belong to a graph: nothing is written into them
    rows = torch.arange(len(words), device=device)  # those that are still computed
    ended = torch.zeros_like(rows, dtype=torch.bool)
    state, last = model.begin(memory).repeat(captions), torch.zeros_like(rows)
    for place in range(limits.maximum):
        if len(rows) == 0:
            break
        logits, state, looked = model.step(last, state, memory)
        last, log_probabilities = choose(logits, words[rows, :place])
        last = last.masked_fill(ended, 0)
        words[rows, place] = last
        attention[rows, place] = looked.detach().masked_fill(ended[:, None], 0).to(attention.dtype)
        log_probabilities = log_probabilities.masked_fill(ended, 0)
        columns.append(log_probabilities.new_zeros(len(words)).index_copy(0, rows, log_probabilities))
        ended = ended | (last == 0)
        going = ~ended.view(-1, captions).all(1)
        if not going.all():
            memory, going = memory.select(going), going.repeat_interleave(captions)
            rows, ended, last, state = rows[going], ended[going], last[going], state.select(going)
    none = [torch.zeros(len(words), device=device)] * (limits.maximum - len(columns))
    table = torch.stack(columns + [n.to(columns[0].dtype) for n in none] if columns else none, 1)
    shape = (images, captions, limits.maximum)
    table = table.view(shape)
    return Captions(words.view(shape), table, attention.view(*shape, regions), table.sum(-1))


def _wide(logits: Tensor) -> Tensor:
    """Half types lose log-probabilities: sums of a caption's would be off by tenths."""
    return logits if logits.dtype == torch.float64 else logits.float()
