"""report: every module that holds weights is there, with what happened to it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import prproduct as pr
from prproduct.ops import kernels


class Token(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))


class MyRMSNorm(Token):
    pass


MODEL = {
    "embedding": (nn.Embedding(5, 8), "embedding"),
    "bag": (nn.EmbeddingBag(5, 8), "embedding"),
    "bilinear": (nn.Bilinear(2, 2, 2), "bilinear"),
    "norm": (nn.GroupNorm(2, 8), "normalisation"),
    "running": (nn.BatchNorm2d(3), "normalisation"),
    "named": (MyRMSNorm(), "normalisation"),
    "activation": (nn.PReLU(), "activation"),
    "list": (nn.ParameterList([nn.Parameter(torch.zeros(2))]), "parameters for others"),
    "token": (Token(), "no layer type that prproduct knows"),
    "linear": (nn.Linear(8, 8), None),
    "attention": (nn.MultiheadAttention(8, 2), None),
    "normed": (parametrizations.weight_norm(nn.Linear(8, 4)), None),
}


def test_every_module_with_weights_has_a_row_and_every_weight_is_counted_once():
    model = nn.ModuleDict({name: module for name, (module, _) in MODEL.items()})
    report = pr.report(pr.convert(model))
    rows = {row.name: row for row in report.rows}
    assert rows.keys() == {*MODEL, "attention.out_proj"}
    for name, (_, why) in MODEL.items():
        assert (rows[name].product, rows[name].why[: len(why or "")]) == (None if why else "pr", why or ""), name
    assert rows["attention.out_proj"].state == "pr, with its attention"
    assert rows["normed"].weights == 8 * 4 + 4 + 4
    assert sum(row.weights for row in report.rows) == sum(p.numel() for p in model.parameters())
    assert len(report.converted) + len(report.left) == len(report.rows)


def test_tied_weights_count_once_and_say_with_whom():
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 8), "head": nn.Linear(8, 5)})
    model["head"].weight = model["embedding"].weight
    report = pr.report(pr.convert(model))
    assert [row.weights for row in report.rows] == [0, 45]
    assert report.rows[0].state.endswith("multiplies nothing, shares weights with head")
    assert str(report).endswith("1 of 2 modules and 45 of 45 weights (100.0%) converted")


def test_tied_weights_count_with_a_layer_under_a_product():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[2].weight = model[0].weight
    report = pr.report(pr.convert(model, filter_fn=lambda layer, name: name == "1"))
    assert [row.weights for row in report.rows] == [0, 16, 0]
    assert [row.why for row in report.left] == ["could be converted, and was not chosen, shares weights with 1"] * 2
    assert str(report).endswith("1 of 3 modules and 16 of 16 weights (100.0%) converted")


def test_layers_not_chosen_are_told_from_those_that_cannot_be():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert [row.why for row in pr.report(model).rows] == ["could be converted, and was not chosen"] * 2
    attention = nn.MultiheadAttention(8, 2)
    assert "its attention takes the weights" in pr.report(attention).rows[1].why


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_quantized_layers_are_listed():
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 2)), {nn.Linear})
    model = nn.Sequential(nn.Linear(4, 4), quantized)
    report = pr.report(pr.convert(model))
    assert [(row.name, row.why) for row in report.left] == [("1.0", "quantized")]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_layers_are_listed():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 2)))
    assert pr.report(pr.convert(model)).left[0].why.startswith("TorchScript")


def test_the_table_is_aligned():
    lines = str(pr.report(pr.convert(nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100))))).splitlines()
    assert len({len(line) for line in lines[:-1]}) == 1
    assert lines[0].split() == ["name", "type", "state", "weights"]
    assert "10,100" in lines[1]


def test_a_model_of_one_layer_and_one_without_weights():
    assert str(pr.report(pr.convert(nn.Linear(2, 2)))).splitlines()[1].split() == [
        "(the",
        "model)",
        "Linear",
        "pr",
        "6",
    ]
    assert str(pr.report(nn.ReLU())).endswith("0 of 0 modules and 0 of 0 weights converted")


def test_an_implementation_other_than_the_cpus_kernels_is_named(monkeypatch):
    model = pr.convert(nn.Linear(3, 2))
    assert "eager backward" not in str(pr.report(model))
    monkeypatch.setattr(kernels, "library", lambda: False)
    assert str(pr.report(model)).endswith("eager backward on cpu by plain torch")
    assert "eager backward" not in str(pr.report(nn.Linear(3, 2)))
