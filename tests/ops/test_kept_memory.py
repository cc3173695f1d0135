"""What a layer keeps: its own graph's tensors and nothing longer; and what a backward depends on: its inputs alone."""

import copy
import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import prproduct as pr


class StochasticDepth(nn.Module):
    """A net whose graph differs from step to step."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x):
        for block in self.blocks:
            if torch.rand(()) < 0.5:
                x = x + block(x)
                x.relu_()
        return self.head(x.flatten(1))


def train(net, optimizer, steps):
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(3, 4, 6, 6)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("memory", ["save", "recompute"])
def test_a_run_resumed_from_its_state_dict_gives_the_same_bits(memory):
    net = pr.convert(StochasticDepth(), memory=memory)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train(net, optimizer, range(6))
    resumed = pr.convert(StochasticDepth(), memory=memory)
    resumed.load_state_dict(copy.deepcopy(net.state_dict()))
    again = torch.optim.SGD(resumed.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = pr.convert(StochasticDepth())  # another model in the process changes nothing
    for step in range(6, 12):
        train(net, optimizer, [step])
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), [step])
    train(resumed, again, range(6, 12))
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def output_of(layer, x):
    output = layer(x)
    return output[0] if isinstance(output, tuple) else output


LAYERS = {
    "linear": (lambda memory: pr.nn.Linear(6, 5, memory=memory), (4, 6)),
    "convolution": (lambda memory: pr.nn.Conv2d(6, 5, 3, memory=memory), (4, 6, 5, 5)),
    "depthwise": (lambda memory: pr.nn.Conv2d(6, 6, 3, groups=6, memory=memory), (4, 6, 5, 5)),
    "lstm": (lambda memory: pr.nn.LSTM(6, 5, memory=memory), (3, 4, 6)),
}


@pytest.mark.parametrize("memory", ["save", "recompute"])
@pytest.mark.parametrize("name", LAYERS)
def test_no_storage_lives_longer_than_its_graph(name, memory):
    make, shape = LAYERS[name]
    layer, other = make(memory), make(memory)
    x = torch.randn(shape)
    y = output_of(layer, x)
    storage = weakref.ref(y.untyped_storage())
    loss = y.sum()
    output_of(other, torch.randn(shape)).sum().backward()  # another model's backward keeps nothing of this one's
    loss.backward()
    del y, loss
    gc.collect()
    assert storage() is None


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_in_a_list_is_kept_and_let_go(name):
    make, shape = LAYERS[name]
    layer = make("save")
    losses = [output_of(layer, torch.randn(shape)).sum() for _ in range(3)]
    nodes = [weakref.ref(loss) for loss in losses]
    losses[1].backward()
    del losses
    gc.collect()
    assert [node() for node in nodes] == [None] * 3


def test_an_error_in_backward_leaves_nothing_behind():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("on purpose")

    layer = pr.nn.Linear(6, 5)
    x = torch.randn(4, 6, requires_grad=True)
    y = layer(Failing.apply(x))
    storage = weakref.ref(y.untyped_storage())
    with pytest.raises(RuntimeError, match="on purpose"):
        y.sum().backward()
    del y
    gc.collect()
    assert storage() is None
    layer(x.detach()).sum().backward()  # and the next backward runs
    assert layer.weight.grad.isfinite().all()


RESIDENT = """
import resource, torch, prproduct as pr
torch.set_num_threads(1)
net = pr.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten(),
                                     torch.nn.Linear(8 * 36, 10)))
def steps(count):
    for step in range(count):
        net.zero_grad()
        net(torch.randn(1 + step % 7, 3, 8, 8)).square().sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = steps(500)
print(steps(5000) - first)
"""


@pytest.mark.slow
def test_the_resident_memory_is_flat_over_5000_steps():
    result = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    grown = int(result.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 8 * 2**20


def test_gradients_do_not_share_the_workspace():
    """What one backward returns must not change in the next."""
    layer, x = pr.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6, requires_grad=True)
    y = layer(x)
    first = torch.autograd.grad(y, (x, layer.weight), torch.ones_like(y), retain_graph=True)
    copies = [t.clone() for t in first]
    torch.autograd.grad(y, (x, layer.weight), torch.randn_like(y))
    assert all(torch.equal(a, b) for a, b in zip(first, copies, strict=True))


def test_the_forward_of_a_leaf_view_is_torchs_bit_for_bit():
    """ATen chooses another kernel for weights that require no gradient."""
    base, x = torch.randn(2, 33, 17), torch.randn(17, 5, 6, 7).movedim(0, -1)
    weight = base[1].requires_grad_()
    assert weight._is_view()
    assert weight.is_leaf
    assert torch.equal(pr.functional.linear(x, weight), nn.functional.linear(x, weight))
