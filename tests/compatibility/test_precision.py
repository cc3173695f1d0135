"""Autocast in both half types, and GradScaler."""

import copy
from contextlib import nullcontext

import pytest
import torch
from networks import assert_same, differ, gradients, images, small, step
from torch import nn

import prproduct as pr
from prproduct.ops import kernels

pytestmark = pytest.mark.usefixtures("device")

HALVES = [torch.bfloat16, torch.float16]


def autocast_step(model, x, dtype, scaler=None):
    model.zero_grad()
    with torch.autocast(torch.get_default_device().type, dtype):
        output = model(x)
        loss = output.float().square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()
    return output.detach()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_outputs_under_autocast_are_the_native_ones_and_gradients_near_those_in_float32(dtype):
    ours, native, x = small(), small(None), images()
    assert torch.equal(autocast_step(ours, x, dtype), autocast_step(native, x, dtype))
    assert all(p.grad.dtype == torch.float32 for p in ours.parameters())
    exact = step(small(), x)[1]
    error = {name: (grad - exact[name]).norm() / exact[name].norm() for name, grad in gradients(ours).items()}
    own = step(small(None), x)[1]
    native_error = {name: (grad - own[name]).norm() / own[name].norm() for name, grad in gradients(native).items()}
    assert max(error.values()) < 0.1
    assert max(error.values()) < 4 * max(native_error.values())
    assert differ(gradients(ours), gradients(native))


@pytest.mark.parametrize("implementation", ["kernels", "rule"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_forward_of_r_under_autocast_is_that_of_the_casted_tensors(dtype, implementation):
    layers = [nn.Linear(64, 8), nn.Conv2d(4, 8, 3), nn.ConvTranspose1d(4, 8, 3)]
    inputs = [torch.randn(5, 64), torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6)]
    for layer, x in zip(layers, inputs, strict=True):
        pr.convert(layer, "r")
        with kernels.disabled() if implementation == "rule" else nullcontext():
            with torch.autocast(torch.get_default_device().type, dtype):
                output = layer(x)
                with torch.no_grad():
                    assert torch.equal(layer(x), output)
            output.float().square().sum().backward()
            assert layer.weight.grad.isfinite().all()
            assert torch.equal(output, copy.deepcopy(layer).to(dtype)(x.to(dtype)))
    lstm = pr.convert(nn.LSTM(4, 3), "r")
    with torch.autocast(torch.get_default_device().type, dtype):
        assert lstm(torch.randn(5, 2, 4))[0].isfinite().all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_grad_scaler_scales_and_unscales(dtype):
    model, plain, x = small(), small(), images()
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    autocast_step(plain, x, dtype)
    autocast_step(model, x, dtype, scaler)
    scaler.unscale_(optimizer)
    assert_same(gradients(model), gradients(plain), 2e-2)
    before = model.head.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model.head.weight, before)


def test_an_overflow_skips_the_step_and_lowers_the_scale():
    model, x = small(), images()
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=2.0**40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    autocast_step(model, x, torch.float16, scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 2.0**40
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_model_wholly_in_half_precision_has_the_gradients_of_float32_to_rounding(dtype):
    output, got = step(small().to(dtype), images().to(dtype))
    assert output.dtype == dtype
    assert_same(got, step(small(), images())[1], {torch.bfloat16: 0.2, torch.float16: 0.05}[dtype])
