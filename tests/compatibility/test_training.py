"""Functional calls of a whole model, and its gradients for each sample."""

import pytest
import torch
from networks import assert_same, images, small, step

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's attention under vmap
@pytest.mark.parametrize("detached", [True, False])
def test_functional_call_and_per_sample_gradients(detached):
    model, x = small(), images(3)
    parameters = {name: p.detach() if detached else p for name, p in model.named_parameters()}
    doubled = {name: 2 * p for name, p in parameters.items()}
    assert not torch.equal(torch.func.functional_call(model, doubled, (x,)), model(x))

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).square().mean()

    samples = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    mean = {name: grad.mean(0) for name, grad in samples.items()}
    assert_same(mean, step(model, x)[1], 1e-5)
