"""Threads for tests of the C++ kernels."""

import pytest
import torch


@pytest.fixture
def set_threads():
    """Sets how many threads torch uses, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
