"""The captioner of the paper's §5.1, in plain torch layers: its PR version is `prproduct.convert(model)`.

    v_i = ReLU(W_a a_i)                      `region_embedding`, for each region
    v_g = ReLU(W_g mean a_i)                 `global_embedding`
    h¹  = LSTM(W_e Π, v_g)                   `attention_lstm`: linear layers `word`, `image`, `hidden`
    v̂   = Σ softmax(…)_i v_i                 `attention`: linear layers `region`, `hidden`, `score`
    h²  = LSTM(v̂, h¹)                        `language_lstm`: linear layers `attended`, `attention`, `hidden`
    logits of the next word                  `output`, of h²

The Attention LSTM does not depend on h². So if all words are known, as in training, all of its steps come first, then
attention for all steps at once, then the Language LSTM. Only the product with an LSTM's own hidden state is computed
step by step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from prproduct.captioning.layers import Attention, AttentionLSTM, LanguageLSTM, PackedSteps
from prproduct.lab.errors import InputError


class Memory(NamedTuple):
    """An encoded batch of images: everything that is the same for all words."""

    regions: Tensor  # (images, regions, embedding): v_i, zero for padding
    projections: Tensor  # (images, regions, attention): W_v v_i
    image_gates: Tensor  # (images, 4·hidden): the contribution of v_g to the gates of the Attention LSTM
    present: Tensor  # (images, regions): False where a region is padding

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.present)

    def select(self, index: Tensor) -> Memory:
        """The images at an index, or where a mask is True."""
        return Memory(*(tensor[index] for tensor in self))


class State(NamedTuple):
    """Hidden states and cells of both LSTMs, each (rows, hidden); a row is a caption that is being generated."""

    attention_hidden: Tensor
    attention_cell: Tensor
    language_hidden: Tensor
    language_cell: Tensor

    def select(self, index: Tensor) -> State:
        """The rows at an index, or where a mask is True."""
        return State(*(tensor[index] for tensor in self))

    def repeat(self, times: int) -> State:
        """Each row `times` times, consecutively."""
        return State(*(tensor.repeat_interleave(times, 0) for tensor in self))


class Step(NamedTuple):
    """The result of one decoding step."""

    logits: Tensor  # (rows, vocabulary_size)
    state: State
    attention: Tensor  # (rows, regions), the attention weights


class Captioner(nn.Module):
    """Maps the regions of images to logits of words. Id 0 begins, ends and pads a caption.

    Dropout is applied to v_i, v_g, the embedded word and the input of `output`. Two options are of the authors' code,
    not of the paper: `batch_norm` adds a BatchNorm before and after the embeddings of v_i and v_g, `tanh_layer` a
    linear layer with tanh before `output`.

    >>> model = Captioner(vocabulary_size=9, feature_width=6, hidden=4, embedding=4, attention=4)
    >>> features, present = torch.randn(2, 3, 6), torch.ones(2, 3, dtype=torch.bool)
    >>> model(features, present, torch.tensor([[0, 3, 5]] * 4)).shape  # two captions for each image
    torch.Size([4, 3, 9])
    >>> memory = model.eval().encode(features, present)
    >>> model.step(torch.tensor([0, 0]), model.begin(memory), memory).logits.shape
    torch.Size([2, 9])
    """

    def __init__(
        self,
        vocabulary_size: int,
        feature_width: int,
        hidden: int = 512,
        embedding: int = 512,
        attention: int = 512,
        dropout: float = 0.3,
        *,
        batch_norm: bool = False,
        tanh_layer: bool = False,
    ) -> None:
        super().__init__()
        self.region_norm, self.global_norm = (_Norms(feature_width, embedding, batch_norm) for _ in range(2))
        self.region_embedding = nn.Linear(feature_width, embedding)
        self.global_embedding = nn.Linear(feature_width, embedding)
        self.word_embedding = nn.Embedding(vocabulary_size, embedding)
        self.attention_lstm = AttentionLSTM(hidden, image=embedding, word=embedding)
        self.attention = Attention(embedding, hidden, attention)
        self.language_lstm = LanguageLSTM(hidden, attended=embedding)
        self.tanh_layer = nn.Linear(hidden, hidden) if tanh_layer else None
        self.output = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        features: Tensor,
        present: Tensor,
        words: Tensor,
        sample_probability: float = 0.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (captions, steps, vocabulary_size) of the word after each of `words` (captions, steps).

        `words` begin with 0; the captions of an image are consecutive. With `sample_probability` each word but the
        first is replaced by a sample of the model's own distribution at its position (scheduled sampling). If `mask`
        (captions, steps) is given, True for a prefix of each caption, only these n positions are computed, and the
        logits are (n, vocabulary_size) in row-major order.
        """
        memory = self.encode(features, present)
        self._rows_per_image(len(words), memory.images)  # raises for a wrong number of captions
        if sample_probability > 0:
            words = self._scheduled_sampling(memory, words, sample_probability)
        packed = PackedSteps.of(torch.ones_like(words, dtype=torch.bool) if mask is None else mask, memory.images)
        logits = self._logits(packed.by_caption(self._hidden_states(memory, words, packed)))
        return logits.view(*words.shape, logits.shape[-1]) if mask is None else logits

    def encode(self, features: Tensor, present: Tensor) -> Memory:
        """Encode features (images, regions, width); `present` (images, regions) is False for padding."""
        self._check(features, present)
        count = present.sum(1, keepdim=True).to(features.dtype)
        # Padding is removed, not multiplied by 0: it would change a BatchNorm, and 0·NaN is NaN.
        mean = features.masked_fill(~present[..., None], 0).sum(1) / count
        regions = self._embed(features[present], self.region_embedding, self.region_norm)
        image = self._embed(mean, self.global_embedding, self.global_norm)
        projections, image_gates = self.attention.region(regions), self.attention_lstm.image(image)
        return Memory(_padded(regions, present), _padded(projections, present), image_gates, present)

    def begin(self, memory: Memory) -> State:
        """The state before the first word, one row for each image."""
        zeros = memory.image_gates.new_zeros(memory.images, self.hidden_width)
        return State(zeros, zeros, zeros, zeros)

    def step(self, words: Tensor, state: State, memory: Memory) -> Step:
        """One step after `words` (rows,); the rows of an image are consecutive, the same number for each image."""
        state, attention = self._advance(words, state, memory)
        return Step(self._logits(state.language_hidden), state, attention)

    @property
    def hidden_width(self) -> int:
        """Width of the hidden states."""
        return self.language_lstm.hidden.in_features

    def _hidden_states(self, memory: Memory, words: Tensor, packed: PackedSteps) -> Tensor:
        """h² (n, hidden) of known words, in packed order; each layer computes all steps before the next layer."""
        word_gates = self.attention_lstm.word(self.dropout(self.word_embedding(words.flatten()[packed.order])))
        lower = self.attention_lstm(word_gates + memory.image_gates[packed.image], packed.batch_sizes)  # h¹
        queries = packed.by_image(lower, memory.images)
        attended, _ = self.attention(queries, memory.regions, memory.projections, memory.present)
        gates = self.language_lstm.attended(packed.from_images(attended)) + self.language_lstm.attention(lower)
        return self.language_lstm(gates, packed.batch_sizes)

    def _advance(self, words: Tensor, state: State, memory: Memory) -> tuple[State, Tensor]:
        """The next state and the attention weights (rows, regions)."""
        shape = memory.images, self._rows_per_image(len(words), memory.images)
        word_gates = self._word_gates(words)
        gates = (word_gates.unflatten(0, shape) + memory.image_gates[:, None]).flatten(0, 1)
        lower, lower_cell = self.attention_lstm.step(gates, state.attention_hidden, state.attention_cell)
        queries = lower.unflatten(0, shape)
        attended, weights = self.attention(queries, memory.regions, memory.projections, memory.present)
        gates = self.language_lstm.attended(attended.flatten(0, 1)) + self.language_lstm.attention(lower)
        upper, upper_cell = self.language_lstm.step(gates, state.language_hidden, state.language_cell)
        return State(lower, lower_cell, upper, upper_cell), weights.flatten(0, 1)

    def _word_gates(self, words: Tensor) -> Tensor:
        """The contribution of words (rows,) to the gates of the Attention LSTM; each distinct word of a beam once."""
        if not torch.is_grad_enabled() and not self.training:
            distinct, inverse = words.unique(return_inverse=True)
            return self.attention_lstm.word(self.word_embedding(distinct))[inverse]
        return self.attention_lstm.word(self.dropout(self.word_embedding(words)))

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.tanh_layer is not None:
            hidden = self.tanh_layer(hidden).tanh()
        return self.output(self.dropout(hidden))

    @torch.no_grad()
    def _scheduled_sampling(self, memory: Memory, words: Tensor, probability: float) -> Tensor:
        """The words, each replaced with `probability` by a sample of the model given the words before it.

        The samples are drawn in a separate pass without gradients, with its own dropout masks, that computes logits
        only where it samples. The words of the pass that is trained are then all known.
        """
        mixed, replaced = words.clone(), torch.rand(words.shape, device=words.device) < probability
        state = self.begin(memory).repeat(self._rows_per_image(len(words), memory.images))
        for step in range(1, words.shape[1]):
            state, _ = self._advance(mixed[:, step - 1], state, memory)
            chosen = replaced[:, step]
            if chosen.any():
                logits = self._logits(state.language_hidden[chosen])
                mixed[chosen, step] = logits.float().softmax(-1).multinomial(1)[:, 0]
        return mixed

    def _embed(self, rows: Tensor, layer: nn.Linear, norm: _Norms) -> Tensor:
        return self.dropout(norm.after(layer(norm.before(rows)).relu()))

    def _check(self, features: Tensor, present: Tensor) -> None:
        width = self.region_embedding.in_features
        if features.dim() != 3 or features.shape[-1] != width or present.shape != features.shape[:2]:
            shapes = f"{(*features.shape,)} with present {(*present.shape,)}"
            raise InputError(
                f"features of shape {shapes}; this captioner takes (images, regions, {width}) with (images, regions)"
            )
        empty = (~present.any(1)).nonzero()
        if len(empty):
            raise InputError(f"image {empty[0].item()} of the batch has no regions; each needs at least one")

    @staticmethod
    def _rows_per_image(rows: int, images: int) -> int:
        if images == 0 and rows == 0:
            return 1
        if images == 0 or rows % images:
            raise InputError(f"{rows} captions for {images} images; each image must have the same number of captions")
        return rows // images


class _Norms(nn.Module):
    """A BatchNorm before and after an embedding layer, or two identities."""

    def __init__(self, before: int, after: int, batch_norm: bool) -> None:
        super().__init__()
        self.before: nn.Module = nn.BatchNorm1d(before) if batch_norm else nn.Identity()
        self.after: nn.Module = nn.BatchNorm1d(after) if batch_norm else nn.Identity()


def _padded(rows: Tensor, present: Tensor) -> Tensor:
    """Rows (n, width) of the n present regions as (images, regions, width), zero for padding."""
    padded = rows.new_zeros(*present.shape, rows.shape[-1])
    return padded.masked_scatter(present[..., None], rows)
