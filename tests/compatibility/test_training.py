"""What training loops do with a model: checkpointing, accumulation, functional calls, averaged copies, schedules."""

import copy

import pytest
import torch
from networks import assert_same, differ, gradients, images, small, step
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import prproduct as pr
from prproduct.products import Tempered

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_gradient(reentrant):
    model = small()
    x = images().requires_grad_()
    expected, expected_grads = step(model, x)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x, use_reentrant=reentrant)

    output, got = step(Checkpointed(), x)
    assert torch.equal(output, expected)
    assert_same({name.removeprefix("model."): grad for name, grad in got.items()}, expected_grads, 1e-6)


def test_accumulated_gradients_are_those_of_the_joined_batch():
    model, x = small(), images(6)
    joined = step(model, x)[1]
    model.zero_grad()
    for part in x.chunk(3):
        (model(part).square().mean() / 3).backward()
    assert_same(gradients(model), joined, 1e-5)


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


def test_averaged_copies_keep_the_product_and_average_the_weights():
    model, x = small("pr-w"), images()
    start = copy.deepcopy(model.state_dict())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step(model, x)
    optimizer.step()
    average.update_parameters(model)
    assert str(average.module.hidden.product) == "pr-w"
    assert average.module.hidden.weight is not model.hidden.weight
    torch.testing.assert_close(average.module.head.weight, (start["head.weight"] + model.head.weight) / 2)
    average(x).sum().backward()


def test_the_product_changes_during_training_with_one_optimizer():
    model, x = small("p"), images()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = None
    for product in ("p", Tempered(0.3), Tempered(0.6), "pr"):
        pr.convert(model, product)
        step(model, x)
        optimizer.step()
        assert state is None or optimizer.state[model.head.weight] is state
        state = optimizer.state[model.head.weight]
    assert state["step"] == 4


def test_gradients_clip_and_fused_optimizers_step():
    model, x = small(), images()
    step(model, x)
    total = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert total > 1e-3
    torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True).step()
    assert differ(step(model, x)[1], step(small(None), x)[1])
