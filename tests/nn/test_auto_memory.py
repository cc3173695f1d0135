"""memory="auto", a layer's own: it keeps its output where that costs nothing, or where nobody else keeps it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from compare import relative_error
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import prproduct as pr
from prproduct.bench.memory import kept_bytes
from prproduct.classification.models import build
from prproduct.kernels.outputs import not_held


def keepers(net: nn.Module) -> list[str]:
    """The layers that have learned to keep their output: nobody else does, or somebody does as it is."""
    return [name for name, m in net.named_modules() if "product_habit" in vars(m) and m.product_habit.learned]


def train(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    net(x).square().mean().backward()
    return [p.grad.clone() for p in net.parameters()]


def without_norms() -> nn.Module:
    """ReLU keeps what it gives, not what it was given."""
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", ["resnet8", "preresnet8", "wrn-10-1", "densenet-bc-10-4"])
def test_the_papers_networks_keep_as_much_as_natively(name):
    native = build(name)
    ours = pr.convert(copy.deepcopy(native))
    x = torch.randn(16, 3, 32, 32)
    bytes_kept = [kept_bytes(lambda t, net=net: net(t).square().mean(), x) for net in (native, ours)]
    assert bytes_kept[1] <= 1.003 * bytes_kept[0]  # the classifier's output
    told = [] if name == "resnet8" else [layer for layer, _ in ours.named_modules() if layer.endswith("conv2")]
    assert not set(told) & set(keepers(ours))  # of what is added to something, or put together with something


def test_a_layer_learns_to_keep_what_nobody_else_keeps():
    net, x = pr.convert(without_norms()), torch.randn(2, 3, 8, 8)
    assert not keepers(net)
    before = kept_bytes(lambda t: net(t).square().mean(), x)  # with a backward before
    assert keepers(net) == ["0", "2"]
    saving = pr.convert(copy.deepcopy(net), memory="save")
    assert before == kept_bytes(lambda t: saving(t).square().mean(), x)


def test_gradients_are_the_same_to_the_bit_before_and_after():
    """So a run that is stopped and goes on in another process, which has to learn again, ends as if it had not been."""
    net, x = pr.convert(without_norms()), torch.randn(2, 3, 8, 8)
    first, second = train(net, x), train(net, x)
    assert keepers(net)
    saved = train(pr.convert(net, memory="save"), x)
    for a, b, c in zip(first, second, saved, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


class Twice(nn.Module):
    """One convolution, whose output is first added to something, and then goes through a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(256, 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.conv(self.norms[0](x))
        return self.last(self.conv(self.norms[1](x)).relu().flatten(1))


def test_gradients_stay_the_same_to_the_bit_if_a_layer_is_called_in_several_places():
    net, x = pr.convert(Twice()), torch.randn(2, 3, 8, 8)
    steps = [train(net, x) for _ in range(3)]
    for gradients in steps[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients, steps[0], strict=True))
    assert keepers(net) == ["first"]


def test_what_is_written_into_is_not_worth_keeping():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))
    nets, x = [pr.convert(copy.deepcopy(net), memory=memory) for memory in ("save", "auto")], torch.randn(2, 3, 8, 8)
    for a, b in zip(*(train(net, x) for net in nets), strict=True):
        assert relative_error(b, a) <= 1e-6
    assert keepers(nets[1]) == ["2"]


def test_a_head_that_is_not_converted_costs_no_memory():
    """When the first of our layers goes back, what others kept of its output is gone: it keeps it from then on, too."""
    blocks = [layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    native, x = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256, 2)), torch.randn(2, 4, 8, 8)
    net = pr.convert(copy.deepcopy(native), filter_fn=lambda layer, name: isinstance(layer, nn.Conv2d))
    train(net, x)
    habits = [vars(layer)["product_habit"] for layer in net if isinstance(layer, pr.nn.Conv2d)]
    assert all(habit.learned for habit in habits)
    kept = [kept_bytes(lambda t, net=net: net(t).square().mean(), x) for net in (native, net)]
    assert kept[0] == kept[1]  # as all are kept by BatchNorm


def test_few_rows_are_kept_at_once_and_many_are_not():
    few, many = pr.nn.Linear(8, 256), pr.nn.Linear(8, 256)
    with torch.no_grad():
        many.weight.copy_(few.weight)
    rows = torch.randn(1024, 8)
    for layer, x, kept in ((few, rows[:1023], True), (many, rows, False)):
        node = layer(x).grad_fn
        assert (node.saved_tensors[3] is not None) is kept


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_see_the_same_kept_again(reentrant):
    """A layer that learns between two uses of it must not keep more when a region is computed again."""
    layer, x = pr.nn.Conv2d(4, 4, 3, padding=1), torch.randn(2, 4, 6, 6, requires_grad=True)

    def region(t: Tensor) -> Tensor:
        return layer(t).flatten(1).softmax(1).view_as(t)  # what this keeps has another shape than the layer's output

    y = checkpoint(region, x, use_reentrant=reentrant)
    y = checkpoint(region, region(y), use_reentrant=reentrant)
    y.sum().backward()
    got, layer.weight.grad = layer.weight.grad.clone(), None
    region(region(region(x))).sum().backward()
    assert relative_error(got, layer.weight.grad) <= 1e-5


def test_two_backwards_of_one_graph():
    net = pr.convert(build("preresnet8"))
    loss = net(torch.randn(4, 3, 32, 32)).square().sum()
    first, second = (torch.autograd.grad(loss, list(net.parameters()), retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert not any(name.endswith("conv2") for name in keepers(net))  # which are added to something


def test_two_graphs_one_after_the_other():
    """What the first backward finds of the second graph, it leaves to the second."""
    net, images = pr.convert(build("preresnet8")), [torch.randn(4, 3, 32, 32) for _ in range(2)]
    alone = [torch.autograd.grad(net(x).square().sum(), list(net.parameters())) for x in images]
    losses = [net(x).square().sum() for x in images]
    for loss, expected in zip(losses, alone, strict=True):
        got = torch.autograd.grad(loss, list(net.parameters()))
        assert all(relative_error(a, b) <= 1e-5 for a, b in zip(got, expected, strict=True))
    assert not any(name.endswith("conv2") for name in keepers(net))


def test_graphs_that_live_on_are_forgotten():
    """As in a list of losses: they must not make every backward slower than the last."""
    net, losses, remembered = pr.convert(build("preresnet8")), [], []
    for step in range(40):
        losses.append(net(torch.randn(1, 3, 8, 8)).square().sum())
        if step % 2:
            losses[-1].backward()
        remembered.append(len(not_held))
    assert max(remembered[30:]) <= max(remembered[20:30])


def test_a_part_of_the_graph_that_was_let_go_of_is_not_asked():
    """Nor is it needed: gradients of that part are not wanted again."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * torch.ones_like(ctx.saved_tensors[0])

    first, second, head = (pr.nn.Conv2d(4, 4, 1) for _ in range(3))
    x = torch.randn(2, 4, 3, 3)
    shared = Doubled.apply(first(x))
    torch.autograd.grad(shared.sum(), first.weight)
    loss = head((second(x) + shared).sigmoid()).square().sum()
    (gradient,) = torch.autograd.grad(loss, second.weight)
    assert gradient.isfinite().all()


def test_what_was_learned_goes_with_the_layer():
    net = pr.convert(without_norms())
    train(net, torch.randn(2, 3, 8, 8))
    assert keepers(copy.deepcopy(net)) == keepers(net) == ["0", "2"]
    assert keepers(pickle.loads(pickle.dumps(net))) == ["0", "2"]
    assert not any("habit" in key for key in net.state_dict())
    assert "memory" not in repr(net)
    pr.convert(net)  # another product may find other things
    assert keepers(net) == []
    pr.revert(net)
    assert not any("product" in key for m in net.modules() for key in vars(m))


def test_check_leaves_it_as_it_was():
    net, x = pr.convert(without_norms(), memory="recompute"), torch.randn(2, 3, 8, 8)
    before = repr(net)
    pr.check(net, x)
    assert repr(net) == before
    pr.convert(net)
    train(net, x)
    pr.check(net, x)
    assert keepers(net) == ["0", "2"]


def test_under_torch_compile_too():
    net, x = pr.convert(build("preresnet8")), torch.randn(4, 3, 32, 32)
    expected = train(copy.deepcopy(net), x)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for a, b in zip(train(compiled, x), expected, strict=True):
        assert relative_error(a, b) <= 1e-4


def test_autocast():
    """In bfloat16 a sum has no digits to spare: outputs that are added to something are computed again, then kept."""
    net, x = pr.convert(build("preresnet8")), torch.randn(4, 3, 32, 32)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().square().mean()
        loss.backward()
    added = [name for name, _ in net.named_modules() if name.endswith(".conv2")]
    assert set(added) <= set(keepers(net))
