"""What the tests compare by: every product's name, p by our own path, and the gradients of an op for cloned leaves."""

import torch
from torch import Tensor

from prproduct.products import P

PRODUCTS = ["p", "pr", "r", "tempered:0.3", "no-length", "no-direction", "no-direction-w", "pr-w"]
NATIVE_FORWARD = [product for product in PRODUCTS if product != "r"]


class Through(P):
    """The gains of p, but not p itself: takes our own path where p takes torch's."""

    name = "through"


def gradients(op, *tensors: Tensor | None, upstream: Tensor | None = None, **options) -> list[Tensor]:
    """The output of op and the gradient of every tensor, for a fixed random gradient of the output."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    output = op(*leaves, **options)
    if upstream is None:
        generator = torch.Generator("cpu").manual_seed(1)
        upstream = torch.randn(output.shape, generator=generator, dtype=torch.float64, device="cpu").to(output)
    output.backward(upstream)
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖/‖expected‖ in float64; 0 when both are empty or zero."""
    assert got.shape == expected.shape
    difference = (got.double() - expected.double()).norm().item()
    return difference / expected.double().norm().item() if difference else 0.0


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(got) == len(expected)
    for position, (one, other) in enumerate(zip(got, expected, strict=True)):
        error = relative_error(one, other)
        assert error <= tolerance, f"tensor {position}: relative error {error:.2e} > {tolerance:.0e}"
