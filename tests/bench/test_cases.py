"""Every case of the table builds; the layers run, natively, under the product and by the literal formula."""

import copy

import pytest
import torch
from torch import nn

import prproduct as pr
from prproduct.bench.cases import CASES, SWEEPS, Case, chosen, output_of, swept
from prproduct.bench.literal import make_literal, why_not_literal
from prproduct.bench.measure import Variants, measure
from prproduct.bench.networks import GPT, InPlaceNet
from prproduct.bench.profiling import CPP, PLAIN, kept_bytes, path_of
from prproduct.bench.results import Settings
from prproduct.bench.timing import OURS, REFERENCE, Budget
from prproduct.classification.models.vit import ViT
from prproduct.lab.errors import InputError
from prproduct.ops import kernels

LAYERS = [case for case in CASES if not case.classes]
NETS = [case for case in CASES if case.classes]
TINY_NETS = [
    Case("tiny", "ViT", lambda: ViT(8, 4, 12, 2, 3, 5), (2, 3, 8, 8), classes=5),
    Case("tiny", "GPT", lambda: GPT(11, 6, 12, 2, 3), (2, 6), classes=11, vocabulary=11),
    Case("tiny", "in place", lambda: InPlaceNet(4, 2, 5), (3, 3, 6, 6), classes=5),
]
ONE_ROUND = Budget(rounds=2, seconds=0.0, most=2, warm_up=0, reference_rounds=1)


def name_of(case):
    return case.name


def test_the_table_has_every_row_of_the_targets():
    assert [sum(case.group == group for case in CASES) for group in ("linear", "conv", "recurrent")] == [4, 7, 3]
    assert [sum(case.group == group for case in CASES) for group in ("nets", "transformers", "inplace")] == [4, 2, 1]
    assert all(case.target for case in (*LAYERS, *NETS) if case.group != "inplace")
    assert sum(case.autocast_target is not None for case in (*LAYERS, *NETS)) == 3
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", LAYERS, ids=name_of)
def test_a_layer_runs_and_ours_has_the_native_output_and_another_gradient(case):
    variants = Variants.of(case, "pr", torch.float32)
    outputs = [output_of(module, variants.batch) for module in (variants.native, variants.ours)]
    if case.group == "recurrent":  # whose forward is torch's to rounding
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    else:
        assert torch.equal(*outputs)
    grads = []
    for module in (variants.native, variants.ours):
        step = case.steps({"": module}, variants.batch)[""]
        step.prepare()
        step()
        grads.append(variants.batch.grad.clone())
        assert all(p.grad.isfinite().all() for p in module.parameters())
    assert not torch.equal(*grads)


@pytest.mark.parametrize("case", NETS, ids=name_of)
def test_a_net_builds_converts_and_has_the_right_output_shape(case):
    """On the meta device, without memory and time."""
    with torch.device("meta"):
        net = pr.convert(case.build())
        batch = case.batch(torch.float32)
        with torch.no_grad():
            logits = net(batch)
    assert logits.shape == (*case.shape[: 2 if case.vocabulary else 1], case.classes)


@pytest.mark.parametrize(
    ("word", "millions"), [("ViT-S", (21, 22)), ("GPT-2", (81, 82)), ("ResNet-110", (1.7, 1.8)), ("WRN", (36, 37))]
)
def test_nets_have_the_size_that_their_name_says(word, millions):
    with torch.device("meta"):
        case = next(case for case in NETS if case.name.startswith(word))
        count = sum(p.numel() for p in case.build().parameters()) / 1e6
    assert millions[0] < count < millions[1]


@pytest.mark.parametrize("case", TINY_NETS, ids=name_of)
def test_a_net_under_the_product_has_the_gradients_of_the_literal_net(case):
    variants = Variants.of(case, "pr", torch.float64)
    modules = {"ours": variants.ours, "literal": make_literal(copy.deepcopy(variants.native), "pr")}
    assert torch.equal(variants.native(variants.batch), variants.ours(variants.batch))
    for step in case.steps(modules, variants.batch).values():
        step()
    for ours, literal in zip(*(module.parameters() for module in modules.values()), strict=True):
        torch.testing.assert_close(ours.grad, literal.grad, rtol=1e-6, atol=1e-9)


def test_the_literal_lstm_has_the_gradients_of_ours():
    case = Case("tiny", "LSTM", lambda: nn.LSTM(5, 4), (3, 2, 5))
    variants = Variants.of(case, "pr", torch.float64)
    modules = {"ours": variants.ours, "literal": make_literal(copy.deepcopy(variants.native), "pr")}
    for step in case.steps(modules, variants.batch).values():
        step()
    for ours, literal in zip(*(module.parameters() for module in modules.values()), strict=True):
        torch.testing.assert_close(ours.grad, literal.grad, rtol=1e-8, atol=1e-10)


def test_the_literal_formula_is_not_tried_where_its_windows_fill_the_memory():
    with torch.device("meta"):
        layer = nn.Conv2d(16, 16, 3, padding=1)
        assert why_not_literal(layer, torch.empty(128, 16, 32, 32)) is None
        reason = why_not_literal(layer, torch.empty(2048, 16, 32, 32))  # 2048·32²·16·9 numbers of 4 bytes
    assert "1.1 GiB" in reason
    assert not layer._forward_hooks


def test_no_layer_stands_in_for_the_literal_formula_that_it_does_not_have():
    assert why_not_literal(nn.GRU(3, 2), torch.empty(5, 4, 3)) == "there is no literal formula of these layers"


def test_a_step_of_a_net_moves_its_weights():
    case = TINY_NETS[0]
    variants = Variants.of(case, "pr", torch.float64)
    before = copy.deepcopy(variants.ours.state_dict())
    step = case.steps({"": variants.ours}, variants.batch)[""]
    step.prepare()
    step()
    assert all(not torch.equal(value, before[name]) for name, value in variants.ours.named_parameters())


def layer_step(product="pr"):
    layer, x = pr.nn.Linear(3, 2, product=product), torch.ones(4, 3)
    return lambda: layer(x).sum().backward()


def test_the_path_is_the_one_that_ran():
    assert path_of(layer_step()) == CPP
    with kernels.disabled():
        assert path_of(layer_step()) == PLAIN


@pytest.mark.parametrize("case", TINY_NETS, ids=name_of)
def test_a_row_holds_every_time_and_both_memories(case):
    row = measure(case, Settings(), ONE_ROUND)
    assert {name: len(seconds) for name, seconds in row.seconds.items() if name in (OURS, REFERENCE)} == {
        OURS: 2,
        REFERENCE: 1,
    }
    assert row.path == CPP
    assert row.saved_ours >= row.saved_native > 0
    assert row.without_reference is None


def test_a_linear_layer_keeps_one_output():
    case = Case("tiny", "Linear", lambda: nn.Linear(5, 3), (4, 5))
    row = measure(case, Settings(), ONE_ROUND, with_reference=False)
    assert row.saved_ratio == pytest.approx(1 + (4 * 3) / (4 * 5))
    assert row.without_reference == "not asked for"


def test_targets_are_for_float32_and_with_torch_compile_for_nets():
    case = Case("tiny", "Linear", lambda: nn.Linear(5, 3), (4, 5), target=1.1)
    assert measure(case, Settings(), ONE_ROUND, False).target == 1.1
    assert measure(case, Settings(dtype="float64"), ONE_ROUND, False).target is None
    assert case.time_target(compile=True) is None
    assert NETS[0].time_target(compile=True) == 1.12
    both = Case("tiny", "Linear", lambda: nn.Linear(5, 3), (4, 5), target=1.1, autocast_target=1.25)
    assert measure(both, Settings(autocast=True), ONE_ROUND, False).target == 1.25


def test_only_takes_parts_of_names_and_groups():
    assert {case.group for case in chosen(["LSTM", "nets"])} == {"recurrent", "nets"}
    assert [case.name for case in chosen(["1x1"])] == ["Conv2d 1×1 96→48 at 32², batch 64"]
    assert chosen([]) == CASES
    with pytest.raises(InputError, match="--only rnn: no case"):
        chosen(["lstm", "rnn"])


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_varies_one_size(kind):
    _, cases = swept(kind)
    assert [case.size for case in cases] == sorted({case.size for case in cases})
    smallest = cases[0]
    variants = Variants.of(smallest, "pr", torch.float32)
    assert torch.equal(variants.native(variants.batch), variants.ours(variants.batch))


def test_recomputing_keeps_no_more_than_natively():
    case = next(case for case in CASES if case.name.startswith("Linear 128"))
    variants = Variants.of(case, "pr", torch.float32, memory="recompute")
    kept = [kept_bytes(case.forward(module), variants.batch) for module in (variants.native, variants.ours)]
    assert kept[0] == kept[1]
