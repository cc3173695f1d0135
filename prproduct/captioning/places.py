"""Which places of a batch of captions are computed, and in which order.

Captions end at different words. A third of the places of a padded batch lie behind the end, and what is computed there
is thrown away: so the decoder is given the others alone, packed step by step as torch packs sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence


class Places(NamedTuple):
    """Places (captions, steps) in the decoder's order: all of the first step, then all of the second, …

    A caption that reaches further comes before one that ends sooner: the captions of a step are the first of those of
    the step before.
    """

    order: Tensor  # for each in the decoder's order, its number when the caption's steps follow each other
    captions: list[int]  # how many captions have each step
    image: Tensor  # to which image each belongs
    row: Tensor  # at which row of its image each stands when an image's places stand together
    most: int  # rows of an image

    @classmethod
    def of(cls, wanted: Tensor, images: int) -> Places:
        """Those that are True; each caption has its first, and no gap. The captions of an image stand together.

        >>> places = Places.of(torch.tensor([[True, False, False], [True, True, True]]), images=1)
        >>> places.order.tolist(), places.captions, places.row.tolist(), places.most
        ([3, 0, 4, 5], [2, 1, 1], [1, 0, 2, 3], 4)
        """
        captions, steps = wanted.shape
        if captions == 0:
            none = torch.zeros(0, dtype=torch.long, device=wanted.device)
            return cls(none, [], none, none, 0)
        numbers = torch.arange(wanted.numel(), device=wanted.device).view(captions, steps)
        packed = pack_padded_sequence(numbers, wanted.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        of_image = wanted.reshape(images, -1)
        row = (of_image.cumsum(1) - 1).flatten()[packed.data]
        image = packed.data // (steps * captions // images)
        return cls(packed.data, packed.batch_sizes.tolist(), image, row, int(of_image.sum(1).max()))

    def by_image(self, values: Tensor, images: int) -> Tensor:
        """Values in the decoder's order as (images, most, …), zero where an image has fewer places."""
        rows = values.new_zeros(images * self.most, *values.shape[1:])
        return rows.index_copy(0, self._in_images, values).unflatten(0, (images, self.most))

    def from_images(self, values: Tensor) -> Tensor:
        """The reverse of `by_image`."""
        return values.flatten(0, 1)[self._in_images]

    @property
    def _in_images(self) -> Tensor:
        return self.image * self.most + self.row

    def by_caption(self, values: Tensor) -> Tensor:
        """Values in the decoder's order, but the steps of a caption following each other, as `tensor[wanted]` has."""
        return values[self.order.argsort()]
