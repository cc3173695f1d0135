"""The model does not notice its probe: the same numbers to the bit, and no hook or work beyond a sampled step."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_same_bits, count_hooks
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import prproduct as pr

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


class Block(nn.Module):
    """A layer used twice, dropout, and in all kinds of layers a weight that is computed anew at each look."""

    def __init__(self, package=nn):
        super().__init__()
        self.conv = package.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.shared = parametrizations.spectral_norm(package.Linear(8, 8))
        self.lstm = package.LSTM(8, 6, num_layers=2, dropout=0.3, bidirectional=True)
        self.projecting = package.LSTM(12, 13, num_layers=2, proj_size=12)
        self.attention = package.MultiheadAttention(12, 2, dropout=0.2)
        for layer, name in (
            (self.lstm, "weight_ih_l0"),
            (self.projecting, "weight_ih_l0"),
            (self.projecting, "weight_hh_l1"),
            (self.attention, "in_proj_weight"),
        ):
            parametrizations.spectral_norm(layer, name)
        self.head = package.Linear(12, 2)

    def forward(self, x):
        x = F.dropout(F.relu_(self.norm(self.conv(x))), 0.2, self.training).flatten(2).permute(2, 0, 1)
        x = self.shared(F.relu(self.shared(x)))
        x = self.projecting(self.lstm(x)[0])[0]
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(0))


def train(net: nn.Module, probe: bool = False) -> list[Tensor]:
    """Outputs, gradients, weights, buffers and the next random numbers, after steps in both modes."""
    torch.manual_seed(7)
    data = torch.randn(4, 2, 3, 5, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    results = []
    watcher = pr.AngleProbe(net, every=2) if probe else None
    for x in data:
        optimizer.zero_grad()
        y = net(x)
        y.square().sum().backward()
        results += [y.detach(), *(p.grad.clone() for p in net.parameters())]
        optimizer.step()
    net.eval()
    results.append(net(data[0]).detach())
    with torch.no_grad():
        results.append(net(data[0]))
    if watcher is not None:
        watcher.close()
        assert {(r.step, r.training) for r in watcher.records} == {(0, True), (2, True), (0, False)}
    return [*results, *net.state_dict().values(), torch.rand(3)]


@pytest.mark.parametrize("package", [nn, pr.nn], ids=["native", "converted"])
def test_outputs_gradients_buffers_and_random_numbers_are_the_same_to_the_bit(package):
    torch.manual_seed(0)
    net = Block(package)
    assert_same_bits(train(copy.deepcopy(net), probe=True), train(net))


def test_hooks_are_on_the_model_alone_between_samples_and_gone_after_close():
    net = Block()
    x = torch.randn(2, 3, 5, 5)
    during = []
    net.norm.register_forward_hook(lambda *_: during.append(count_hooks(net)))
    probe = pr.AngleProbe(net, every=2)
    assert count_hooks(net) == 2
    for _ in range(2):
        net(x).sum().backward()
    sampled, between = during
    assert sampled > 2 + 5
    assert between == 2  # the test's own, and the one that counts steps
    net(x)  # sampled, and its backward never comes
    probe.close()
    probe.close()
    assert count_hooks(net) == 1
    assert probe.start() is probe
    assert count_hooks(net) == 2
    probe.close()


def test_between_samples_nothing_is_measured(monkeypatch):
    measured = []
    monkeypatch.setattr("prproduct.probe.sampled_step.measure", lambda *arguments: measured.append(1))
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pr.AngleProbe(net, every=5):
        for step in range(11):
            net(torch.ones(1, 3))
            assert len(measured) == 2 * (step // 5 + 1)


def test_arguments_are_copied_only_where_there_is_a_replay(monkeypatch):
    monkeypatch.setattr("prproduct.probe.angle_probe.ForwardState", None)
    with pr.AngleProbe(Block()) as probe:
        probe._model(torch.randn(2, 3, 5, 5))
    assert probe.records


def test_a_forward_that_raises_leaves_a_probe_that_works():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 3))
    with pr.AngleProbe(net) as probe:
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        net[1] = nn.Linear(3, 2)
        net(torch.ones(1, 3))
        assert count_hooks(net) == 2  # one waits for the weight's gradient
    assert count_hooks(net) == 0
    assert [(r.step, r.layer) for r in probe.records] == [(0, "0"), (1, "0")]


class Writer:
    """Like TensorBoard's, it cannot be copied."""

    def add_scalar(self, *_):
        pass

    def add_histogram_raw(self, *_, **__):
        pass

    def __deepcopy__(self, _):
        raise TypeError


def test_a_copy_of_the_model_is_not_probed():
    net = nn.Linear(2, 2)
    with pr.AngleProbe(net, writer=Writer()) as probe:
        copied = copy.deepcopy(net)
        buffer = io.BytesIO()
        torch.save(net, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        for other in (copied, loaded):
            other(torch.ones(1, 2))
        assert probe.records == []
        assert torch.equal(net(torch.ones(1, 2)), loaded(torch.ones(1, 2)))
    assert len(probe.records) == 1
