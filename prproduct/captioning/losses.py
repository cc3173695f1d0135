"""The two losses of a captioner: cross-entropy against references, REINFORCE against rewards.

Both count the words of a caption and its end, once, and nothing behind it: an end that is not learnt leaves captions
that stop in the middle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def targets_of(words: Tensor) -> Tensor:
    """What follows each of `words` (…, steps), which begin with 0 and are padded with it.

    >>> targets_of(torch.tensor([[0, 4, 2, 0], [0, 4, 2, 3]]))
    tensor([[4, 2, 0, 0],
            [4, 2, 3, 0]])
    """
    return torch.cat([words[..., 1:], torch.zeros_like(words[..., :1])], -1)


def counted(targets: Tensor) -> Tensor:
    """True for the words of each caption (…, steps) and its end, False behind.

    >>> counted(torch.tensor([[4, 2, 0, 0], [0, 0, 0, 0], [4, 2, 3, 5]])).int()
    tensor([[1, 1, 1, 0],
            [1, 0, 0, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    is_end = targets == 0
    return is_end.cumsum(-1) <= is_end  # no end before


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each target (captions, steps), 0 behind the end.

    The logits are those of all places (captions, steps, vocabulary), or of the `counted` ones alone (places,
    vocabulary).

    >>> log_probabilities(torch.zeros(1, 3, 4), torch.tensor([[2, 0, 0]])).exp()
    tensor([[0.2500, 0.2500, 1.0000]])
    """
    wanted = counted(targets)
    if logits.dim() > targets.dim():
        logits = logits[wanted]
    found = -F.cross_entropy(logits, targets[wanted], reduction="none")
    return found.new_zeros(targets.shape).masked_scatter(wanted, found)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log-probability of the targets (…, steps), the sum over words and ends; `counted` says how many they are.

    >>> (cross_entropy(torch.zeros(2, 3, 4), torch.tensor([[2, 0, 0], [1, 2, 3]])) / 5).exp()
    tensor(4.)
    """
    return -log_probabilities(logits, targets).sum()


def reinforce(log_probabilities: Tensor, words: Tensor, advantages: Tensor) -> Tensor:
    """−advantage · log-probability of sampled words (…, steps), the sum over words and ends.

    The mean over captions has the gradient of the expected reward, upside down, where `advantages` (…) are rewards less
    something that does not depend on the sample: the reward of the greedy caption, or the mean of the image's others.

    >>> words = torch.tensor([[5, 0, 0], [7, 7, 7]])
    >>> reinforce(torch.full((2, 3), -1.0), words, torch.tensor([1.0, 0.0]))
    tensor(2.)
    """
    weights = counted(words) * advantages[..., None].to(log_probabilities.dtype)
    return -(log_probabilities * weights).sum()
