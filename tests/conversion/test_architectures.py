"""Whole networks as people have them: the same outputs, the literal formula's gradients, and steps that learn."""

import pytest
import torch
from architectures import ARCHITECTURES
from compare import relative_error
from literal import install
from torch import nn

import prproduct as pr


@pytest.fixture(params=ARCHITECTURES, ids=lambda build: build.__name__, name="build")
def _build(request):
    def build(dtype=torch.float32):
        torch.manual_seed(3)
        model, batch = request.param()
        batch = {key: t.to(dtype) if t.is_floating_point() else t for key, t in batch.items()}
        return model.to(dtype).train(), batch

    build.layers = ARCHITECTURES[request.param]
    return build


def with_dropout(model, batch):
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.1
        elif isinstance(m, nn.MultiheadAttention):
            m.dropout = 0.1
    torch.manual_seed(4)
    return model(**batch)


def test_outputs_are_identical_and_all_layers_are_converted(build):
    native, batch = build()
    ours, _ = build()
    classes, keys = [type(m) for m in ours.modules()], list(ours.state_dict())
    pr.convert(ours)
    assert sum(isinstance(m, pr.nn.ProductLayer) for m in ours.modules()) == build.layers
    assert list(ours.state_dict()) == keys
    for mode in (True, False):
        expected, got = (with_dropout(model.train(mode), batch) for model in (native, ours))
        assert torch.equal(got.loss, expected.loss)
        assert torch.equal(got.logits, expected.logits)
    assert [type(m) for m in pr.revert(ours).modules()] == classes


def test_gradients_equal_the_literal_formula_in_the_same_places(build):
    literal, batch = build(torch.float64)
    ours, _ = build(torch.float64)
    pr.convert(ours)
    places = install(literal, "pr")
    assert places == [name for name, m in ours.named_modules() if isinstance(m, pr.nn.ProductLayer)]
    for model in (ours, literal):
        model(**batch).loss.backward()
    largest = max(p.grad.norm() for p in literal.parameters() if p.grad is not None)
    for (name, got), expected in zip(ours.named_parameters(), literal.parameters(), strict=True):
        if expected.grad is None:
            assert got.grad is None
        elif expected.grad.norm() > 1e-12 * largest:  # a bias before a BatchNorm has a gradient of nothing but rounding
            assert relative_error(got.grad, expected.grad) < 1e-10, name


def test_tied_embeddings_stay_tied():
    from architectures import gpt2

    model, batch = gpt2()
    pr.convert(model)
    assert model.lm_head.weight is model.transformer.wte.weight
    model(**batch).loss.backward()
    assert "shares weights with lm_head" in str(pr.report(model))
