"""The two losses of a captioner: cross-entropy with references, and REINFORCE with rewards.

Both sum over the words of a caption and its end token, once, and ignore the padding after it. Without the end token in
the loss, generated captions would stop in the middle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def targets_of(words: Tensor) -> Tensor:
    """The next word after each of `words` (…, steps), which begin with 0 and are padded with 0.

    >>> targets_of(torch.tensor([[0, 4, 2, 0], [0, 4, 2, 3]]))
    tensor([[4, 2, 0, 0],
            [4, 2, 3, 0]])
    """
    return torch.cat([words[..., 1:], torch.zeros_like(words[..., :1])], -1)


def caption_mask(targets: Tensor) -> Tensor:
    """True for the words of each caption (…, steps) and its first 0, the end token; False after it.

    >>> caption_mask(torch.tensor([[4, 2, 0, 0], [0, 0, 0, 0], [4, 2, 3, 5]])).int()
    tensor([[1, 1, 1, 0],
            [1, 0, 0, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    is_end = targets == 0
    return is_end.cumsum(-1) <= is_end  # no end token before this one


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target (captions, steps), 0 after the end token.

    The logits are (captions, steps, vocabulary), or (n, vocabulary) for the n positions of `caption_mask(targets)`
    alone, in row-major order.

    >>> log_probabilities(torch.zeros(1, 3, 4), torch.tensor([[2, 0, 0]])).exp()
    tensor([[0.2500, 0.2500, 1.0000]])
    """
    mask = caption_mask(targets)
    if logits.dim() > targets.dim():
        logits = logits[mask]
    found = -F.cross_entropy(logits, targets[mask], reduction="none")
    return found.new_zeros(targets.shape).masked_scatter(mask, found)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log-probability of the targets (…, steps), summed over words and end tokens.

    >>> (cross_entropy(torch.zeros(2, 3, 4), torch.tensor([[2, 0, 0], [1, 2, 3]])) / 5).exp()
    tensor(4.)
    """
    return -log_probabilities(logits, targets).sum()


def reinforce(log_probabilities: Tensor, words: Tensor, advantages: Tensor) -> Tensor:
    """−advantage · log-probability of sampled words (…, steps), summed over words and end tokens.

    Its mean over captions has the negative gradient of the expected reward, if `advantages` (…) are rewards minus a
    baseline that does not depend on the sample: the reward of the greedy caption, or the mean reward of the image's
    other samples.

    >>> words = torch.tensor([[5, 0, 0], [7, 7, 7]])
    >>> reinforce(torch.full((2, 3), -1.0), words, torch.tensor([1.0, 0.0]))
    tensor(2.)
    """
    weights = caption_mask(words) * advantages[..., None].to(log_probabilities.dtype)
    return -(log_probabilities * weights).sum()
