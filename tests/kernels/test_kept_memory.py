"""Tensors whose memory is not what they say, by hooks, flags or wrappers, are left to plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import prproduct as pr

KEPT = (10, 11, 12)  # of the saved tensors: activated gates, cells, tanh of the next ones


def test_a_view_of_a_zero_tensor_has_no_memory() -> None:
    layer, x = pr.nn.Linear(8, 3), torch._efficientzerotensor((4, 8))[1:]
    assert x.data_ptr()
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()


def test_what_torch_func_left_behind_is_an_input() -> None:
    left: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        left.append(x * 1.0)
        return x.square().sum()

    torch.func.grad(function)(torch.randn(4, 8))
    layer = pr.nn.Linear(8, 3)
    layer(left[0]).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore")
def test_a_traced_product_computes_with_other_input() -> None:
    layer, x = pr.nn.Linear(6, 5, product="r"), torch.randn(3, 6)
    traced = torch.jit.trace(layer, (torch.randn(3, 6),), check_trace=False)
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.parametrize("change", [Tensor.half, Tensor.double, lambda t: torch._neg_view(-t)])
def test_a_hook_changes_what_an_lstm_kept(change: Callable[[Tensor], Tensor]) -> None:
    layer, x = pr.nn.LSTM(6, 16), torch.randn(5, 8, 6)

    def gradient() -> Tensor:
        count = iter(range(100))

        hooks = (lambda t: (next(count), t)), (lambda kept: change(kept[1]) if kept[0] in KEPT else kept[1])
        with saved_tensors_hooks(*hooks):
            output, _ = layer(x)
        (grad,) = torch.autograd.grad(output.square().sum(), layer.weight_hh_l0)
        return grad

    expected = torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_hh_l0)[0]
    torch.testing.assert_close(gradient(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shorter", [5, *range(8, 13)])  # the others are inputs, of which torch has the shapes
def test_a_hook_that_loses_rows_is_refused(shorter: int) -> None:
    layer, x = pr.nn.LSTM(6, 16), torch.randn(5, 8, 6)
    count = iter(range(100))
    hooks = (lambda t: (next(count), t)), (lambda kept: kept[1][:3].clone() if kept[0] == shorter else kept[1])
    with saved_tensors_hooks(*hooks):
        output, _ = layer(x)
    with pytest.raises(RuntimeError, match="from a hook with other shapes"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: pr.nn.Linear(30, 40), (50, 30)),
        (lambda: pr.nn.Conv2d(6, 4, 3), (2, 6, 9, 8)),
        (lambda: pr.nn.Conv2d(6, 6, 3, groups=6), (2, 6, 9, 8)),
        (lambda: pr.nn.ConvTranspose1d(6, 4, 3, stride=2, output_padding=1), (2, 6, 9)),
    ],
)
def test_a_hook_that_gives_back_another_input_is_refused(
    layer: Callable[[], torch.nn.Module], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, requires_grad=True)
    with saved_tensors_hooks(lambda t: t, lambda t: torch.cat([t] * 2000) if t.shape == shape else t):
        y = layer()(x)
    with pytest.raises(RuntimeError, match="saved tensors came back from a hook with other shapes"):
        y.sum().backward()
