"""The two layers that the captioner's decoder is made of: an LSTM with a linear layer for each input, and attention.

A concatenated input would have one angle with each weight vector. The paper takes, and plots, an angle for each part
of the input: so each part has a layer of its own, and their outputs are added.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

IN_CACHE = 2**18  # numbers; a megabyte in float32


class BlockLSTM(nn.Module):
    """An LSTM whose gates are sums of linear layers: one for each input, by its name, and `hidden`.

    In order i, f, g, o, as torch has them: c' = σ(f)∘c + σ(i)∘tanh(g), h' = σ(o)∘tanh(c') (the paper's Equation 14). A
    gate has one bias, which is the first input's.

    >>> lstm = BlockLSTM(4, word=3, image=2)
    >>> words, images = torch.randn(7 + 7 + 5, 3), torch.randn(2)  # 7 sequences, 5 of them with a third step
    >>> gates = lstm.given("word", words) + lstm.given("image", images)
    >>> lstm(gates, [7, 7, 5]).shape
    torch.Size([19, 4])
    """

    hidden: nn.Linear

    def __init__(self, hidden: int, **inputs: int) -> None:
        super().__init__()
        for place, (name, width) in enumerate(inputs.items()):
            self.add_module(name, nn.Linear(width, 4 * hidden, bias=place == 0))
        self.hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def given(self, name: str, input: Tensor) -> Tensor:
        """What an input gives to the gates."""
        return self.get_submodule(name)(input)

    def forward(self, gates: Tensor, sequences: list[int]) -> Tensor:
        """All hidden states, of one step after the other, from what the inputs give to the gates; the first are zero.

        `sequences` says how many there are in each step: those that end sooner come last.
        """
        hidden = cell = gates.new_zeros(sequences[0] if sequences else 0, self.hidden.in_features)
        outputs = [hidden[:0]]
        for gates_of_step in gates.split(sequences):
            ended = len(gates_of_step) < len(hidden)
            hidden, cell = (t[: len(gates_of_step)] if ended else t for t in (hidden, cell))
            hidden, cell = self.step(gates_of_step, hidden, cell)
            outputs.append(hidden)
        return torch.cat(outputs)

    def step(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell."""
        i, f, g, o = (gates + self.hidden(hidden)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


class Attention(nn.Module):
    """Where to look: softmax over regions of W_z·tanh(W_v v_i + W_h1 h¹), and the mean of the regions under it.

    `region` is W_v, applied once to each image's regions; `hidden` is W_h1; `score` is W_z.

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
        """The attended regions (images, queries, width of a region) and the weights (images, queries, regions)."""
        hidden = self.hidden(queries)
        if torch.is_grad_enabled():
            scores = self._scores(hidden, projections)
        else:  # in parts that stay in the cache, which takes half the time; a graph keeps all of them anyhow
            part = max(1, IN_CACHE // max(1, hidden[0:1].numel() * projections.shape[1]))
            parts = zip(hidden.split(part), projections.split(part), strict=True)
            scores = torch.cat([self._scores(*some) for some in parts])
        weights = scores.masked_fill(~present[:, None], -torch.inf).softmax(-1)
        return weights @ regions, weights  # (images, queries, regions) @ (images, regions, width)

    def _scores(self, hidden: Tensor, projections: Tensor) -> Tensor:
        summed = projections[:, None] + hidden[:, :, None]  # (images, queries, regions, width)
        return self.score(summed.tanh_())[..., 0]
