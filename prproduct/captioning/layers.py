"""What the captioner's decoder is made of: an LSTM with a linear layer per input, attention, and packed steps.

With a concatenated input, a weight vector would have one angle with all of it. The paper computes and plots an angle
for each part of the input, so each part has a linear layer of its own, and the outputs are added.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

IN_CACHE = 2**18  # elements; one megabyte of float32


class BlockLSTM(nn.Module):
    """An LSTM whose gates are the sum of linear layers: one for each input, which subclasses have, and `hidden`.

    The gates are in torch's order i, f, g, o: c' = σ(f)∘c + σ(i)∘tanh(g), h' = σ(o)∘tanh(c') (the paper's Equation 14).
    There is one bias per gate, in the layer of the first input.
    """

    hidden: nn.Linear

    def forward(self, gates: Tensor, batch_sizes: list[int]) -> Tensor:
        """Hidden states (rows, hidden) of packed sequences; `gates` (rows, 4·hidden) are the sum of the inputs' layers.

        The rows of a step follow those of the step before, as in torch's PackedSequence: `batch_sizes` has the number
        of sequences in each step, and sequences that end earlier come last. The initial state is zero.
        """
        hidden = cell = gates.new_zeros(batch_sizes[0] if batch_sizes else 0, self.hidden.in_features)
        outputs = [hidden[:0]]
        for gates_of_step in gates.split(batch_sizes):
            if len(gates_of_step) < len(hidden):
                hidden, cell = hidden[: len(gates_of_step)], cell[: len(gates_of_step)]
            hidden, cell = self.step(gates_of_step, hidden, cell)
            outputs.append(hidden)
        return torch.cat(outputs)

    def step(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell, each (rows, hidden)."""
        i, f, g, o = (gates + self.hidden(hidden)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


class AttentionLSTM(BlockLSTM):
    """The lower LSTM, of v_g and the embedded word.

    >>> lstm = AttentionLSTM(4, image=2, word=3)
    >>> words, image = torch.randn(7 + 7 + 5, 3), torch.randn(2)  # 7 sequences, 5 of them with a third step
    >>> lstm(lstm.image(image) + lstm.word(words), [7, 7, 5]).shape
    torch.Size([19, 4])
    """

    def __init__(self, hidden: int, image: int, word: int) -> None:
        super().__init__()
        self.image = nn.Linear(image, 4 * hidden)
        self.word = nn.Linear(word, 4 * hidden, bias=False)
        self.hidden = nn.Linear(hidden, 4 * hidden, bias=False)


class LanguageLSTM(BlockLSTM):
    """The upper LSTM, of the attended regions and the hidden state of the lower one."""

    def __init__(self, hidden: int, attended: int) -> None:
        super().__init__()
        self.attended = nn.Linear(attended, 4 * hidden)
        self.attention = nn.Linear(hidden, 4 * hidden, bias=False)
        self.hidden = nn.Linear(hidden, 4 * hidden, bias=False)


class Attention(nn.Module):
    """Additive attention over regions: weights softmax_i(W_z·tanh(W_v v_i + W_h1 h¹)), and the weighted mean of v_i.

    `region` is W_v, which the caller applies once to each image's regions; `hidden` is W_h1; `score` is W_z.

    >>> attention = Attention(regions=6, hidden=4, width=5)
    >>> regions, present = torch.randn(2, 3, 6), torch.tensor([[True, True, True], [True, False, False]])
    >>> mean, weights = attention(torch.randn(2, 7, 4), regions, attention.region(regions), present)
    >>> mean.shape, weights.shape, weights[1, 0].tolist()
    (torch.Size([2, 7, 6]), torch.Size([2, 7, 3]), [1.0, 0.0, 0.0])
    """

    def __init__(self, regions: int, hidden: int, width: int) -> None:
        super().__init__()
        self.region = nn.Linear(regions, width)
        self.hidden = nn.Linear(hidden, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, regions: Tensor, projections: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """The attended regions (images, queries, embedding) and the weights (images, queries, regions).

        `queries` are h¹ (images, queries, hidden), `projections` W_v v_i (images, regions, width).
        """
        hidden = self.hidden(queries)
        if torch.is_grad_enabled():
            scores = self._scores(hidden, projections)
        else:  # in chunks that fit into the cache, which takes half the time; autograd would save all of them anyway
            chunk = max(1, IN_CACHE // max(1, hidden[0:1].numel() * projections.shape[1]))
            chunks = zip(hidden.split(chunk), projections.split(chunk), strict=True)
            scores = torch.cat([self._scores(*pair) for pair in chunks])
        weights = scores.masked_fill(~present[:, None], -torch.inf).softmax(-1)
        return weights @ regions, weights  # (images, queries, regions) @ (images, regions, embedding)

    def _scores(self, hidden: Tensor, projections: Tensor) -> Tensor:
        summed = projections[:, None] + hidden[:, :, None]  # (images, queries, regions, width)
        return self.score(summed.tanh_())[..., 0]


class PackedSteps(NamedTuple):
    """The index arithmetic of a batch of captions whose padding is not computed.

    Captions have different lengths, and a third of a padded batch is padding. So the decoder computes only the n
    positions inside of captions, in packed order as torch's PackedSequence has it: all first steps, then all second
    steps, …, with longer captions first in each step.
    """

    order: Tensor  # (n,): for each packed row, its position in the flattened batch (captions · steps)
    batch_sizes: list[int]  # number of captions in each step
    image: Tensor  # (n,): the image of each packed row
    row: Tensor  # (n,): its index among the positions of its image
    most: int  # largest number of positions of an image

    @classmethod
    def of(cls, mask: Tensor, images: int) -> PackedSteps:
        """Pack the positions where `mask` (captions, steps) is True: a prefix of each caption, at least one step.

        The captions of an image are consecutive, the same number for each image.

        >>> packed = PackedSteps.of(torch.tensor([[True, False, False], [True, True, True]]), images=1)
        >>> packed.order.tolist(), packed.batch_sizes, packed.row.tolist(), packed.most
        ([3, 0, 4, 5], [2, 1, 1], [1, 0, 2, 3], 4)
        """
        captions, steps = mask.shape
        if captions == 0:
            none = torch.zeros(0, dtype=torch.long, device=mask.device)
            return cls(none, [], none, none, 0)
        positions = torch.arange(mask.numel(), device=mask.device).view(captions, steps)
        packed = pack_padded_sequence(positions, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        of_image = mask.reshape(images, -1)
        row = (of_image.cumsum(1) - 1).flatten()[packed.data]
        image = packed.data // (steps * captions // images)
        return cls(packed.data, packed.batch_sizes.tolist(), image, row, int(of_image.sum(1).max()))

    def by_image(self, values: Tensor, images: int) -> Tensor:
        """Packed values (n, …) as (images, most, …), zero where an image has fewer positions."""
        rows = values.new_zeros(images * self.most, *values.shape[1:])
        return rows.index_copy(0, self._image_rows, values).unflatten(0, (images, self.most))

    def from_images(self, values: Tensor) -> Tensor:
        """The inverse of `by_image`."""
        return values.flatten(0, 1)[self._image_rows]

    @property
    def _image_rows(self) -> Tensor:
        return self.image * self.most + self.row

    def by_caption(self, values: Tensor) -> Tensor:
        """Packed values (n, …) in the order of `tensor[mask]`: caption by caption."""
        return values[self.order.argsort()]
