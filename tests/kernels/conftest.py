"""What tests of the passes watch and set: which of them run, and on how many threads."""

import pytest
import torch

from prproduct.kernels import programs, scores, threads


@pytest.fixture
def passes_run(monkeypatch):
    """The names of the passes as they run."""
    names, play = [], scores.Score.play

    def note(score, threads, *given):
        names.extend(phase.kernel.__name__ for phase in score.phases)
        play(score, threads, *given)

    monkeypatch.setattr(scores.Score, "play", note)
    return names


@pytest.fixture
def set_threads(monkeypatch):
    """Sets how many torch uses, for one test, in which nothing is too small to be shared between them."""
    monkeypatch.setattr(threads, "_SMALL", 1)
    monkeypatch.setattr(threads, "_SMALL_FOR_OURS", 1)
    monkeypatch.setattr(threads, "_cores", lambda: 64)
    before = torch.get_num_threads()
    forget_passes()
    yield torch.set_num_threads
    torch.set_num_threads(before)
    forget_passes()


def forget_passes():
    """Those that were written down for other settings than a test's."""
    programs._known.clear()
    programs._remembered.cache_clear()
