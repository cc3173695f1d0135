"""Bytes kept for backward, on cases that can be counted by hand."""

import pytest
import torch
from torch import nn

import prproduct as pr
from prproduct.bench.networks import InPlaceBlock
from prproduct.bench.profiling import kept_bytes

FLOAT = 4
ROWS, IN, OUT = 6, 5, 3


def test_a_native_linear_layer_keeps_its_input():
    assert kept_bytes(nn.Linear(IN, OUT), torch.ones(ROWS, IN, requires_grad=True)) == FLOAT * ROWS * IN


def test_ours_keeps_its_output_too_although_it_hides_from_version_checks():
    batch = torch.ones(ROWS, IN, requires_grad=True)
    assert kept_bytes(pr.nn.Linear(IN, OUT), batch) == FLOAT * ROWS * (IN + OUT)


def test_a_tensor_that_no_hook_sees_is_counted():
    class Hiding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.hidden = x.new_ones(100)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    assert kept_bytes(Hiding.apply, torch.ones(2, requires_grad=True)) == FLOAT * 100


def test_memory_that_two_nodes_share_is_counted_once():
    batch = torch.ones(ROWS, IN, requires_grad=True)
    layers = [nn.Linear(IN, OUT), nn.Linear(IN, OUT)]
    assert kept_bytes(lambda x: layers[0](x) + layers[1](x), batch) == FLOAT * ROWS * IN


def test_what_is_dropped_after_forward_is_not_counted():
    assert kept_bytes(lambda x: (x + torch.ones(1000)[: len(x)]).sum(), torch.ones(5, requires_grad=True)) == 0


@pytest.mark.parametrize("product", [None, "pr"])
def test_conv_batchnorm_relu_keeps_input_output_and_activation(product):
    batch, channels, side = 2, 4, 6
    net = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    if product:
        pr.convert(net, product)
    plane = FLOAT * batch * channels * side**2
    statistics = 2 * FLOAT * channels  # the batch's mean and deviation
    assert kept_bytes(net, torch.randn(batch, channels, side, side, requires_grad=True)) == 3 * plane + statistics


def test_a_residual_added_in_place_costs_no_memory():
    net = nn.Sequential(InPlaceBlock(4), InPlaceBlock(4))
    batch = torch.randn(2, 4, 6, 6, requires_grad=True)
    native = kept_bytes(net, batch)
    last_output = FLOAT * batch.numel()  # which inside a net the next BatchNorm keeps
    assert kept_bytes(pr.convert(net), batch) <= native + last_output
