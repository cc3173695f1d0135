"""Layers to run by the C++ kernels and by plain torch, and how far apart the two may be."""

import compare
import torch

import prproduct as pr
from prproduct.ops import kernels

PRODUCTS = [name for name in compare.PRODUCTS if name != "p"] + ["tempered:0.5"]
LAYERS = {
    "linear": (pr.functional.linear, (7, 5), (3, 5), {}),
    "linear, many outputs": (pr.functional.linear, (7, 5), (1100, 5), {}),
    "linear, many rows": (pr.functional.linear, (150, 5), (3, 5), {}),
    "linear, three axes": (pr.functional.linear, (2, 4, 5), (3, 5), {}),
    "linear, one vector": (pr.functional.linear, (5,), (3, 5), {}),
    "linear, one weight": (pr.functional.linear, (2, 7, 5), (5,), {}),
    "linear, one feature": (pr.functional.linear, (7, 1), (3, 1), {}),
    "conv1d": (pr.functional.conv1d, (3, 4, 9), (6, 4, 3), {"padding": 1}),
    "conv2d": (pr.functional.conv2d, (3, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "conv2d, large planes": (pr.functional.conv2d, (2, 3, 30, 31), (4, 3, 3, 3), {"padding": 1}),
    "conv2d, groups": (pr.functional.conv2d, (3, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "dilation": 2}),
    "conv2d, depthwise": (pr.functional.conv2d, (3, 4, 9, 8), (4, 1, 3, 3), {"groups": 4}),
    "conv2d, one position": (pr.functional.conv2d, (3, 4, 3, 3), (6, 4, 3, 3), {}),
    "conv3d": (pr.functional.conv3d, (2, 2, 4, 5, 6), (3, 2, 2, 2, 2), {}),
    "conv2d, many channels": (pr.functional.conv2d, (3, 16, 9, 8), (32, 8, 3, 3), {"groups": 2, "padding": 1}),
    "conv2d, very many channels": (pr.functional.conv2d, (2, 4, 4, 3), (1100, 2, 3, 3), {"groups": 2}),
    "conv2d, wide padding": (pr.functional.conv2d, (2, 3, 5, 4), (4, 3, 3, 2), {"padding": 4, "stride": 3}),
    "conv2d, not all is covered": (pr.functional.conv2d, (2, 3, 11, 10), (4, 3, 2, 2), {"stride": 4}),
    "conv_transpose1d": (pr.functional.conv_transpose1d, (2, 4, 5), (4, 6, 3), {"stride": 3, "output_padding": 2}),
    "conv_transpose1d, kernel 1": (
        pr.functional.conv_transpose1d,
        (2, 4, 5),
        (4, 6, 1),
        {"output_padding": 1, "dilation": 2},
    ),
    "conv_transpose2d": (pr.functional.conv_transpose2d, (2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "groups": 2}),
}


def operands(name, dtype, seed=0):
    op, input_shape, weight_shape, options = LAYERS[name]
    generator = torch.Generator("cpu").manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(torch.get_default_device())

    x, w = random(*input_shape).requires_grad_(), random(*weight_shape).requires_grad_()
    outputs = 1 if len(weight_shape) == 1 else weight_shape[0] if "transpose" not in name else 6
    return op, x, w, None if len(weight_shape) == 1 else random(outputs), options


def both_gradients(y, tensors, grad):
    """By the C++ kernels, and by plain torch."""
    got = torch.autograd.grad(y, tensors, grad, retain_graph=True)
    with kernels.disabled():
        return got, torch.autograd.grad(y, tensors, grad, retain_graph=True)


TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def assert_equal_to_rounding(got, expected, dtype, factor=1.0):
    """Absolutely where a gradient is zero but for rounding, as that of `no-length` for vectors of one feature."""
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype == dtype
        assert a.shape == b.shape
        if a.numel() == 0:
            continue
        assert (a.double() - b.double()).abs().max() <= factor * TOLERANCES[dtype] * max(1.0, b.double().abs().max())


def step() -> torch.Tensor:
    torch.manual_seed(0)
    layer, x = pr.nn.Linear(20, 700), torch.randn(600, 20)
    layer(x).square().sum().backward()
    return layer.weight.grad
