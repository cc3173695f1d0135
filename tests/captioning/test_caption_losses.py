"""The losses: what they count, and that REINFORCE is the gradient of the expected reward."""

import itertools

import pytest
import torch

from prproduct.captioning.losses import cross_entropy, log_probabilities, reinforce


def test_cross_entropy_is_the_sum_over_words_and_ends():
    logits, targets = torch.randn(2, 4, 6, dtype=torch.float64), torch.tensor([[3, 2, 0, 0], [0, 1, 1, 1]])
    chosen = [(0, 0, 3), (0, 1, 2), (0, 2, 0), (1, 0, 0)]
    expected = -sum(logits.log_softmax(-1)[place] for place in chosen)
    assert torch.allclose(cross_entropy(logits, targets), expected)


@pytest.mark.parametrize("behind", [0, 4])
def test_no_gradient_comes_from_behind_the_end(behind):
    logits = torch.randn(1, 4, 6, requires_grad=True)
    targets = torch.tensor([[3, 0, behind, 0]])
    cross_entropy(logits, targets).backward()
    assert (logits.grad[0, :2] != 0).all()
    assert (logits.grad[0, 2:] == 0).all()


def test_losses_of_nothing_are_zero():
    nothing = torch.zeros(0, 5, dtype=torch.long)
    assert cross_entropy(torch.zeros(0, 5, 3), nothing) == 0
    assert reinforce(torch.zeros(0, 5), nothing, torch.zeros(0)) == 0


def test_reinforce_in_expectation_is_the_gradient_of_the_expected_reward():
    """Over all captions of two words, each weighted with its probability."""
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    captions = torch.tensor(list(itertools.product(range(1, 3), repeat=2)))
    rewards = torch.randn(len(captions), dtype=torch.float64)
    log_p = log_probabilities(logits.expand(len(captions), 2, 3), captions)
    (expected,) = torch.autograd.grad((log_p.sum(1).exp() * rewards).sum(), logits, retain_graph=True)
    got = 0
    for row, probability in enumerate(log_p.detach().sum(1).exp()):
        loss = reinforce(log_p[row : row + 1], captions[row : row + 1], rewards[row : row + 1])
        got -= probability * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    assert torch.allclose(got, expected)


def test_reinforce_gives_the_end_its_share_and_what_follows_none():
    log_p = torch.zeros(1, 4, requires_grad=True)
    reinforce(log_p, torch.tensor([[5, 0, 0, 0]]), torch.tensor([3.0])).backward()
    assert log_p.grad.tolist() == [[-3.0, -3.0, 0.0, 0.0]]
