"""Every test runs on one thread and from one seed; Hypothesis looks at the same examples every time."""

import pytest
import torch
from chromium import browser
from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("reproducible")


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A browser of the module's own (`chromium.py`)."""
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started
