"""What one asks of a probe: which steps and which layers; and what it refuses, in one line."""

import pytest
import torch
from expected_angles import assert_found, count_hooks, rows
from torch import nn

import prproduct as pr


def test_steps_in_eval_mode_are_counted_apart():
    net = nn.Linear(2, 2)
    with pr.AngleProbe(net, every=2) as probe:
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
        net.eval()
        net(torch.ones(1, 2))
    assert [(r.step, r.training) for r in probe.records] == [(0, True), (2, True), (0, False)]


def test_a_trainers_step_numbers_the_records_in_training_and_in_eval_mode():
    net = nn.Linear(2, 2)
    found = []
    for step, training in ((300, True), (600, False)):
        with pr.AngleProbe(net.train(training), step=step) as probe:
            net(torch.ones(1, 2)).sum().backward()
            net(torch.ones(2, 2)).sum().backward()
        found += [(r.step, r.training, r.calls) for r in probe.records]
    assert found == [(300, True, 2), (600, False, 2)]


def test_several_forwards_may_make_one_step():
    net = nn.Linear(2, 2).double()
    x = torch.randn(6, 3, 2).double()
    with pr.AngleProbe(net, every=2, forwards_per_step=2) as probe:
        for first, second in x.unflatten(0, (3, 2)):
            net.zero_grad()
            (net(first).sum() + net(second).sum()).backward()
    assert [(r.step, r.calls, r.pairs) for r in probe.records] == [(0, 2, 12), (2, 2, 12)]
    assert probe.records[1].gradient_norm == pytest.approx(net.weight.grad.norm().item())
    assert_found(probe.records[1], rows(net.weight, x[4:]))


def test_records_can_be_read_while_a_step_goes_on():
    net = nn.Linear(2, 2)
    with pr.AngleProbe(net) as probe:
        y = net(torch.ones(1, 2))
        assert [r.direction_norm for r in probe.records] == [None]
        y.sum().backward()
        assert probe.records[0].direction_norm is not None
    assert len(probe.records) == 1


def test_layers_are_chosen_by_name_or_pattern():
    net = nn.Sequential()
    net.add_module("encoder", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    net.add_module("head", nn.Linear(2, 2))
    assert pr.AngleProbe(net).layers == ["encoder.0", "encoder.1", "head"]
    assert pr.AngleProbe(net, layers=["encoder.*"]).layers == ["encoder.0", "encoder.1"]
    assert pr.AngleProbe(net, layers=["head", "encoder.0"]).layers == ["encoder.0", "head"]
    assert pr.AngleProbe(net.head, layers="Linear").layers == ["Linear"]


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Sequential(nn.ReLU()), {}, r"nothing to probe in Sequential; it reads Linear, Conv1d"),
        (nn.Linear(2, 2), {"every": 0}, r"every must be a whole number from 1 on, not 0"),
        (nn.Linear(2, 2), {"every": 0.5}, r"every must be a whole number from 1 on, not 0.5"),
        (nn.Linear(2, 2), {"bins": 0}, r"bins must be a whole number from 1 on, not 0"),
        (nn.Linear(2, 2), {"forwards_per_step": 0}, r"forwards_per_step must be"),
        (nn.Linear(2, 2), {"step": -1}, r"step must be a whole number from 0 on, not -1"),
        (torch.ones(2, 2), {}, r"takes a torch.nn.Module, not Tensor$"),
        (nn.Linear, {}, r"takes a torch.nn.Module, not type$"),
        (nn.Sequential(nn.Linear(2, 2)), {"layers": ["1"]}, r"no layer to probe is named '1'; there are 0"),
        (nn.Linear(2, 2), {"layers": []}, r"layers is empty; leave it out"),
        (nn.Linear(2, 2), {"layers": nn.Linear(2, 2)}, r"layers takes names or patterns such as .*, not Linear$"),
        (nn.Linear(2, 2), {"layers": torch.ones(2)}, r"layers takes names or patterns such as .*, not Tensor$"),
        (nn.Linear(2, 2), {"writer": object()}, r"writer has no add_scalar\(\)"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(module, options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        pr.AngleProbe(module, **options)
    assert "\n" not in str(caught.value)
    assert not isinstance(module, nn.Module) or count_hooks(module) == 0


def test_a_module_compiled_in_place_and_torch_func_are_refused_in_one_line():
    net = nn.Sequential(nn.Linear(2, 2))
    net.compile(backend="eager")
    with pytest.raises(RuntimeError, match=r"use compiled = torch.compile\(module\)"):
        pr.AngleProbe(net)
    net = nn.Sequential(nn.Linear(2, 2))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"use compiled = torch.compile"), pr.AngleProbe(net):
        compiled(torch.ones(1, 2))
    plain = nn.Linear(2, 1)
    with pr.AngleProbe(plain), pytest.raises(RuntimeError, match=r"inside torch.func transforms"):
        torch.func.vmap(plain)(torch.ones(3, 2))


def test_a_probe_that_saw_nothing_says_so():
    with pytest.warns(UserWarning, match=r"saw no forward of Linear; if it is compiled, use compiled"):
        pr.AngleProbe(nn.Linear(2, 2)).close()
    with pytest.raises(KeyError), pr.AngleProbe(nn.Linear(2, 2)):
        raise KeyError  # and no warning on top of it


def test_a_layer_inside_of_vmap_is_left_out_and_named():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.second(torch.vmap(self.first)(x))

    model = Mapped()
    with pr.AngleProbe(model) as probe:
        model(torch.randn(4, 3)).sum().backward()
    assert [record.name for record in probe.records] == ["second"]
    assert probe.skipped == {"first": "tensors inside of torch.func transforms are not measured"}
