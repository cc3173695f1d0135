"""What a GPU adds to the other tests: its kernels, TF32, streams, graphs, several devices (`make test-gpu`).

Tests that need nothing of CUDA's also run on the CPU, where the C++ kernels take the place of Triton's.
"""

import warnings

import pytest
import torch
from compare import relative_error
from torch import nn

import prproduct as pr
from prproduct.ops import kernels
from prproduct.ops.angles import floor_of_sin_square

pytestmark = pytest.mark.usefixtures("device")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8 * 36, 5)
    return pr.convert(nn.Sequential(*layers))


def step(net, x):
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()
    return [p.grad for p in net.parameters()]


def test_kernels_serve_this_device(device):
    """Where they do not, a warning says why, and the other tests compare plain torch with itself."""
    assert kernels.implementation(device) == ("C++ kernels" if device.type == "cpu" else "Triton kernels")


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_raises_the_floor_and_changes_gradients_by_little(allowed, cuda):
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    assert (floor_of_sin_square(torch.float32, "cuda", False) > 1e-4) == allowed
    x, w = torch.randn(256, 128, requires_grad=True), torch.randn(64, 128, requires_grad=True)
    got = torch.autograd.grad(pr.functional.linear(x, w).square().sum(), (x, w))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    exact = torch.autograd.grad(pr.functional.linear(*wide).square().sum(), wide)
    assert all(relative_error(a, b) <= (1e-2 if allowed else 1e-5) for a, b in zip(got, exact, strict=True))


def test_the_same_bits_in_every_run():
    net, x = model(), torch.randn(16, 3, 6, 6)
    first = [grad.clone() for grad in step(net, x)]
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, step(net, x), strict=True))


def test_nothing_waits_for_the_gpu(cuda):
    net, x = model(), torch.randn(16, 3, 6, 6)
    step(net, x)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(net, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_graph_replays_forward_and_backward(cuda):
    net, x = model(), torch.randn(16, 3, 6, 6)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(net, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    net.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        net(x).square().mean().backward()
    captured = [p.grad for p in net.parameters()]
    x.copy_(torch.randn_like(x))
    graph.replay()
    got = [grad.clone() for grad in captured]
    assert all(torch.equal(a, b) for a, b in zip(got, step(net, x), strict=True))


def test_backward_on_another_stream(cuda):
    net, x = model(), torch.randn(64, 3, 6, 6)
    expected = [grad.clone() for grad in step(net, x)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = step(net, x)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("product", ["pr", "r"])
def test_tensors_of_a_device_that_is_not_the_current_one(product, cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    grads = []
    for index in (0, 1):
        with torch.cuda.device(0):
            torch.manual_seed(0)
            x, w = (torch.randn(shape, device="cpu").to(f"cuda:{index}") for shape in ((64, 20), (30, 20)))
            y = pr.functional.linear(x.requires_grad_(), w.requires_grad_(), product=product)
            grads.append([t.cpu() for t in torch.autograd.grad(y.square().sum(), (x, w))])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_torch_compile_gives_eagers_gradients(cuda):
    net, x = model(), torch.randn(16, 3, 6, 6)
    expected = [grad.clone() for grad in step(net, x)]
    torch.compiler.reset()
    with warnings.catch_warnings(action="ignore"):  # Inductor's own, about TF32 and the like
        got = step(torch.compile(net), x)
    assert all(relative_error(a, b) <= 1e-4 for a, b in zip(got, expected, strict=True))


def test_tensors_on_different_devices_get_torchs_error(cuda):
    layer = pr.nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match="same device"):
        layer(torch.randn(2, 4, device="cpu"))


def test_running_out_of_memory_leaves_no_gradient_behind(cuda):
    layer, x = pr.nn.Linear(1024, 1024), torch.randn(8192, 1024)
    y = layer(x)
    _, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            y.square().sum().backward()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert layer.weight.grad is None
    layer(x).sum().backward()
    assert layer.weight.grad.isfinite().all()
