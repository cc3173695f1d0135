"""Every test runs on one thread and from one seed; Hypothesis looks at the same examples every time.

`pytest --device cuda` runs the tests that take the fixture `device`, with it as torch's default device: tensors and
modules that a test makes lie there. Most modules take it for all of their tests (`pytest.mark.usefixtures("device")`).
"""

import gc

import pytest
import torch
from chromium import browser
from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("reproducible")


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="run what can run there on this device, such as cuda or cuda:1")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cpu":
        return
    chosen = [item for item in items if "device" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_collection_finish(session):
    """What was imported is left out of garbage collections, each of which would take 0.4 s otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device(request):
    """The device of `--device`; torch's default device during the test."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def cuda(device):
    """The device, if it is one of CUDA's."""
    if device.type != "cuda":
        pytest.skip("needs a CUDA device: pytest --device cuda")
    return device


@pytest.fixture(autouse=True)
def _on_device(request):
    """Products in float32 are exact on a GPU, too: TF32 has tests of its own."""
    if "device" not in request.fixturenames or request.config.getoption("--device") == "cpu":
        yield
        return
    cudnn, precision = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.deterministic
    cudnn.allow_tf32, cudnn.deterministic = False, True
    torch.set_float32_matmul_precision("highest")
    try:
        with request.getfixturevalue("device"):
            yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic = before
        torch.set_float32_matmul_precision(precision)


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A browser of the module's own (`chromium.py`)."""
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started
