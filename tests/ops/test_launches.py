"""What a backward launches on a GPU beside the native one, and that it never asks the GPU for a number.

Fake tensors stand for those on a GPU, and tensors on the meta device where torch without CUDA cannot index fake ones:
reading a number off one, or a shape that depends on numbers, raises.
"""

import pytest
import torch
from launches import Launches
from op_cases import PRODUCTS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import prproduct as pr
from prproduct.ops import kernels, rule, triton_operators
from prproduct.ops.contractions import Convolution, Linear
from prproduct.ops.rule import Operands
from prproduct.products import resolve

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYERS = {
    "linear": (Linear(), (2048, 512), (2048, 512)),
    "conv 3×3": (Convolution((1, 1), (1, 1), (1, 1), 1), (128, 64, 8, 8), (64, 64, 3, 3)),
    "conv 1×1": (Convolution((1, 1), (0, 0), (1, 1), 1), (64, 96, 32, 32), (48, 96, 1, 1)),
    "conv 3×3, stride 2": (Convolution((2, 2), (1, 1), (1, 1), 1), (128, 16, 32, 32), (32, 16, 3, 3)),
    "depthwise 3×3": (Convolution((1, 1), (1, 1), (1, 1), 64), (64, 64, 32, 32), (64, 1, 3, 3)),
}


@pytest.fixture
def by_triton(monkeypatch):
    """Launches are recorded instead of done."""

    def record(kernel, grid, *arguments, **constants):
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        launches = next(mode for mode in modes if isinstance(mode, Launches))
        adds = [arguments[0], arguments[17]] if kernel == "prproduct_along" else []
        launches.add(kernel, [*arguments, *adds])

    monkeypatch.setattr(triton_operators, "launch", record)
    monkeypatch.setattr(kernels, "operators_for", lambda t: triton_operators)


def fake_operands(name, dtype, memory_format=torch.contiguous_format):
    """Operands with a bias, and a gradient, on a GPU that is not there."""
    contraction, *shapes = LAYERS[name]
    layout = {"memory_format": memory_format} if len(shapes[0]) == 4 else {}
    x, w = (torch.empty(shape, dtype=dtype, device="cuda", **layout) for shape in shapes)
    bias = torch.empty(shapes[1][0], dtype=dtype, device="cuda")
    y = contraction.native(x, w, bias)
    y = torch.empty(y.shape, dtype=dtype, device="cuda", **layout)
    return contraction, Operands(x, w, bias, y), torch.empty_like(y)


def launches_of(name, dtype, implementation, product="pr", memory_format=torch.contiguous_format):
    """Those of the native backward alone, and those of dX and dW under a product."""
    with FakeTensorMode(), torch.no_grad():
        contraction, operands, grad = fake_operands(name, dtype, memory_format)
        with Launches() as alone:
            contraction.native_backward(grad, operands.input, operands.weight, True, True)
        with Launches() as launches:
            implementation.gradients(contraction, resolve(product), operands, grad, True, True)
    return alone, launches


def beside_native(*args, **kwargs):
    """Names and bytes of what dX and dW take beside the native backward."""
    alone, launches = launches_of(*args, **kwargs)
    return launches.without(alone)


def test_millions_of_classes_fit_into_the_grid_of_a_gpu(monkeypatch):
    grids = []
    monkeypatch.setattr(triton_operators, "launch", lambda kernel, grid, *arguments, **constants: grids.append(grid))
    with FakeTensorMode():
        x, w, y = (torch.empty(shape, device="cuda") for shape in ((64, 8), (3_000_000, 8), (64, 3_000_000)))
        triton_operators.linear_backward(y, x, w, None, y, "pr", 0.0, 1e-6, True, True)
    assert len(grids) == 3
    assert all(size < 2**16 for _, *others in grids for size in others)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "memory_format", "most"),
    [
        ("linear", torch.contiguous_format, 3),
        ("conv 3×3", torch.contiguous_format, 5),
        ("conv 3×3", torch.channels_last, 6),  # fake dW are contiguous, and copied into the weight's layout
        ("conv 3×3, stride 2", torch.contiguous_format, 5),
        ("depthwise 3×3", torch.contiguous_format, 5),
        ("depthwise 3×3", torch.channels_last, 5),  # its weight is contiguous, too
        ("conv 1×1", torch.contiguous_format, 3),
    ],
)
def test_so_many_launches_beside_the_native_backward(name, memory_format, most, dtype, by_triton):
    """The targets are 4 for a linear layer and 8 for a 3×3 convolution; float16 takes one more, for max |g|."""
    names, _ = beside_native(name, dtype, kernels, memory_format=memory_format)
    assert len(names) == most + (dtype == torch.float16), names


@pytest.mark.parametrize(("name", "most"), [("linear", 52), ("conv 3×3", 69)])
def test_so_many_launches_in_plain_torch(name, most):
    names, _ = beside_native(name, torch.float32, rule)
    assert len(names) == most, names


@pytest.mark.parametrize(("name", "per_output", "per_input"), [("linear", 3.1, 4.1), ("conv 1×1", 3.1, 4.2)])
def test_every_number_is_read_and_written_once(name, per_output, per_input, by_triton):
    """3 numbers an output (output, g, D∘g), 4 an input and a weight: one for the norm, three for the correction."""
    _, size = beside_native(name, torch.float32, kernels)
    _, input_shape, weight_shape = LAYERS[name]
    inputs, weights = (torch.Size(shape).numel() for shape in (input_shape, weight_shape))
    outputs = inputs // input_shape[1] * weight_shape[0]
    assert size <= 4 * (per_output * outputs + per_input * (inputs + weights))
    assert size >= 4 * (3 * outputs + 4 * (inputs + weights))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", LAYERS)
def test_no_number_is_read_off_the_gpu(name, product, by_triton):
    """Neither by the kernels' operators nor by the rule, which users' products and torch.compile take."""
    for implementation in (kernels, rule):
        assert launches_of(name, torch.float16, implementation, product)[1].names
    with FakeTensorMode(), torch.no_grad(), Launches() as launches:
        contraction, operands, _ = fake_operands(name, torch.float32)
        if product == "r":
            for implementation in (kernels, rule):
                implementation.value(contraction, resolve(product), operands.input, operands.weight)
            assert "prproduct_split" in launches.names


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(6, 4),
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1),
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2),
        lambda: nn.LSTM(6, 4),
        lambda: nn.GRU(6, 4),
        lambda: nn.MultiheadAttention(6, 2),
    ],
    ids=["Linear", "Conv2d", "ConvTranspose2d", "LSTM", "GRU", "MultiheadAttention"],
)
@pytest.mark.parametrize("product", ["pr", "pr-w", "r"])
def test_layers_run_without_a_number_of_the_gpu(layer, product):
    """Forward and backward of whole layers in plain torch."""
    with torch.device("meta"):
        module = pr.convert(layer(), product)
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            inputs = (torch.empty(3, 4, 9, 9, requires_grad=True),)
        elif isinstance(module, nn.MultiheadAttention):
            inputs = (torch.empty(5, 3, 6, requires_grad=True),) * 3
        else:
            inputs = (torch.empty(5, 3, 6, requires_grad=True),)
        output = module(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        output.backward(torch.empty_like(output))
        assert inputs[0].grad.shape == inputs[0].shape
        assert all(p.grad.shape == p.shape for p in module.parameters())
