"""Forwards that run a second time, for the probe or for a checkpoint: they see what the first saw, and count once."""

import copy

import torch
from expected_angles import assert_found, assert_same_bits, count_hooks, rows
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import prproduct as pr


def test_a_compiled_model_is_read_in_a_forward_of_its_own():
    torch.compiler.reset()  # torch compiles the forward of nn.Sequential a few times in a process, then no more
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))
    x = torch.randn(7, 6)
    eager = copy.deepcopy(net)
    with pr.AngleProbe(eager) as probe:
        eager(x)
    expected = probe.records

    def run(watched: bool) -> tuple[list[Tensor], list]:
        model = copy.deepcopy(net)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        probe = pr.AngleProbe(compiled) if watched else None
        torch.manual_seed(4)
        output = compiled(x)
        output.sum().backward()
        numbers = [output.detach(), *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(2)]
        return numbers, probe.records if probe else []

    (with_probe, records), (without, _) = run(True), run(False)
    assert_same_bits(with_probe, without)
    assert [r.layer for r in records] == ["0", "4"]
    assert records[0].min_sin == expected[0].min_sin
    assert all(record.direction_norm is not None for record in records)


def test_a_part_of_a_model_may_be_compiled():
    net = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager"))
    with pr.AngleProbe(net) as probe, torch.no_grad():
        net(torch.randn(2, 4))
    assert [(r.layer, r.pairs) for r in probe.records] == [("0", 8), ("1.0", 6)]


class Writes(nn.Module):
    """Writes into its arguments and its buffer; the layer with the fused path makes a replay of it."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, nested, *, packed, more):
        self.count += 1
        for tensor in (x, nested[0], nested[1]["a"], packed.data, more["b"][0]):
            tensor.mul_(2)
        whole = x + nested[0] + nested[1]["a"] + packed.data.mean() + more["b"][0]
        return self.head(self.encoder(whole) * self.count)


def test_a_replay_sees_the_arguments_and_buffers_that_the_forward_saw():
    net, results = Writes().eval(), []
    given = [torch.randn(2, 3, 8) for _ in range(4)]
    rows_seen = []
    net.head.register_forward_pre_hook(lambda _, args: rows_seen.append(args[0].clone()))
    for watched in (True, False):
        model = copy.deepcopy(net)
        x, a, b, c = (t.clone() for t in given)
        packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
        probe = pr.AngleProbe(model) if watched else None
        output = model(x, (a, {"a": b}), packed=packed, more={"b": [c]})
        results.append([output.detach(), x, a, b, c, packed.data, model.count])
        if probe:
            probe.close()
            assert_found(probe.records[-1], rows(net.head.weight, rows_seen[0]), 1e-5)
    assert_same_bits(*results)
    torch.testing.assert_close(rows_seen[1], rows_seen[0])  # the replay's


def test_several_probes_may_replay_one_model():
    net = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 8)).eval()
    probes = [pr.AngleProbe(net), pr.AngleProbe(net, every=2), pr.AngleProbe(net[1]), pr.AngleProbe(net[0])]
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(1, 2, 8))
    for probe in probes:
        probe.close()
    steps = [sorted({(record.step, record.calls) for record in probe.records}) for probe in probes]
    every = [(0, 1), (1, 1), (2, 1)]
    assert steps == [every, [(0, 1), (2, 1)], every, every]
    assert count_hooks(net) == 0
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager")
    with pr.AngleProbe(compiled) as one, pr.AngleProbe(compiled) as other:
        compiled(torch.ones(2, 4)).sum().backward()
    assert one.records == other.records
    assert one.records[0].calls == 1


def test_checkpointing_is_not_counted_twice():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)

    net, x = Net(), torch.randn(4, 3)
    with pr.AngleProbe(net) as probe:
        for _ in range(2):
            net(x).sum().backward()
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum().backward()
    assert [(r.step, r.calls, r.pairs) for r in probe.records] == [(0, 1, 12), (1, 1, 12), (2, 1, 12)]
    assert all(r.direction_norm is not None for r in probe.records)
