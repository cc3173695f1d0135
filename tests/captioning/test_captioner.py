"""The captioner: its equations, its padding, its gradients under the products, and what it refuses."""

import copy

import pytest
import torch
from compare import relative_error
from literal import install

import prproduct as pr
from prproduct.captioning.losses import caption_mask, cross_entropy, targets_of
from prproduct.captioning.model import Captioner
from prproduct.lab.errors import InputError

LAYERS = [
    "region_embedding", "global_embedding",
    "attention_lstm.word", "attention_lstm.image", "attention_lstm.hidden",
    "attention.region", "attention.hidden", "attention.score",
    "language_lstm.attended", "language_lstm.attention", "language_lstm.hidden",
    "output",
]  # fmt: skip


def captioner(vocabulary=11, width=6, **options):
    return Captioner(vocabulary, width, hidden=5, embedding=4, attention=3, **{"dropout": 0.0, **options}).double()


def batch(images=3, regions=4, captions=2, steps=6, vocabulary=11, width=6):
    features = torch.randn(images, regions, width, dtype=torch.float64)
    present = torch.ones(images, regions, dtype=torch.bool)
    for image in range(1, images):
        present[image, regions - image % regions :] = False
    words = torch.randint(1, vocabulary, (images * captions, steps))
    words[:, 0] = 0
    words[::2, steps - 2 :] = 0
    return features, present, words


def by_the_paper(model, features, present, words):
    """The equations of §5.1, for one caption and one region at a time, without a bias where there is none."""
    lstms = model.attention_lstm, model.language_lstm
    captions, logits = len(words) // len(features), []
    for row, caption in enumerate(words):
        regions = features[row // captions][present[row // captions]]
        v = [model.region_embedding(a).relu() for a in regions]
        v_g = model.global_embedding(sum(regions) / len(regions)).relu()
        state = [torch.zeros(2, 5, dtype=torch.float64) for _ in lstms]
        for word in caption:
            gates = lstms[0].word(model.word_embedding(word)) + lstms[0].image(v_g) + lstms[0].hidden(state[0][0])
            state[0] = cell(gates, state[0][1])
            scores = [
                model.attention.score((model.attention.region(v_i) + model.attention.hidden(state[0][0])).tanh())
                for v_i in v
            ]
            weights = torch.cat(scores).softmax(0)
            attended = sum(weight * v_i for weight, v_i in zip(weights, v, strict=True))
            gates = lstms[1].attended(attended) + lstms[1].attention(state[0][0]) + lstms[1].hidden(state[1][0])
            state[1] = cell(gates, state[1][1])
            logits.append(model.output(state[1][0]))
    return torch.stack(logits).view(*words.shape, -1)


def cell(gates, before):
    i, f, g, o = gates.chunk(4)
    after = f.sigmoid() * before + i.sigmoid() * g.tanh()
    return torch.stack([o.sigmoid() * after.tanh(), after])


def gradients(model, *inputs):
    loss = cross_entropy(model(*inputs), targets_of(inputs[-1]))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_logits_are_those_of_the_papers_equations():
    model, inputs = captioner(), batch()
    assert relative_error(model(*inputs), by_the_paper(model, *inputs)) < 1e-12


@pytest.mark.parametrize("product", ["p", "pr", "r"])
def test_words_that_are_not_asked_for_change_neither_logits_nor_gradients(product):
    model, inputs = pr.convert(captioner(), product), batch()
    targets = targets_of(inputs[-1])
    asked = caption_mask(targets)
    assert 0 < (~asked).sum() < len(asked) * 3
    packed = model(*inputs, mask=asked)
    assert packed.shape == (asked.sum(), 11)
    assert relative_error(packed, model(*inputs)[asked]) < 1e-12
    expected = gradients(model, *inputs)
    loss = cross_entropy(packed, targets)
    for name, gradient in zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        assert relative_error(gradient, expected[name]) < 1e-12, name


def test_nothing_is_computed_for_words_that_are_not_asked_for():
    model, inputs = captioner(), batch(captions=1, images=2)
    asked = torch.zeros(2, 6, dtype=torch.bool)
    asked[0, :1] = asked[1, :3] = True
    rows = []
    model.output.register_forward_hook(lambda layer, given, result: rows.append(len(given[0])))
    model.attention_lstm.hidden.register_forward_hook(lambda layer, given, result: rows.append(len(given[0])))
    model(*inputs, mask=asked)
    assert rows == [2, 1, 1, 4]  # three steps of the Attention LSTM, then the output layer


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "tanh_layer": True}])
def test_steps_give_the_logits_of_whole_sequences(options):
    model, (features, present, words) = captioner(**options).eval(), batch()
    memory = model.encode(features, present)
    state, together = model.begin(memory).repeat(2), model(features, present, words)
    for place in range(words.shape[1]):
        logits, state, attention = model.step(words[:, place], state, memory)
        assert relative_error(logits, together[:, place]) < 1e-12
        assert torch.allclose(attention.sum(-1), torch.ones(len(words), dtype=torch.float64))


@pytest.mark.parametrize("product", ["pr", "r", "tempered:0.5"])
def test_gradients_of_the_converted_model_are_those_of_the_literal_formula(product):
    model, inputs = captioner(), batch()
    literal = copy.deepcopy(model)
    assert set(install(literal, product)) == set(LAYERS)
    ours, expected = (gradients(m, *inputs) for m in (pr.convert(model, product), literal))
    for name in expected:
        assert relative_error(ours[name], expected[name]) < 1e-9, name


def test_the_pr_gradient_differs_from_the_inner_products_in_every_layer():
    """Else the test above would also pass for a model that convert leaves alone."""
    model, inputs = captioner(), batch()
    native = gradients(copy.deepcopy(model), *inputs)
    converted = gradients(pr.convert(model), *inputs)
    for name in LAYERS:
        assert relative_error(converted[f"{name}.weight"], native[f"{name}.weight"]) > 1e-3, name


def test_every_layer_is_converted_and_reported_by_the_name_that_the_plots_use():
    model = pr.convert(captioner())
    report = {row.name: row.state for row in pr.report(model).rows}
    assert {name for name, state in report.items() if state == "pr"} == set(LAYERS)


def test_angles_are_measured_in_every_layer():
    model, inputs = pr.convert(captioner()), batch()
    with pr.AngleProbe(model, every=1) as probe:
        cross_entropy(model(*inputs), targets_of(inputs[-1])).backward()
    assert {record.name for record in probe.records} == set(LAYERS)


@pytest.mark.parametrize("product", ["p", "pr"])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("content", [0.0, 1e3, float("nan"), float("inf")])
def test_padding_changes_nothing_whatever_it_holds(content, batch_norm, product):
    model, (features, present, words) = pr.convert(captioner(batch_norm=batch_norm), product), batch()
    expected = gradients(model, features, present, words)
    before = model(features, present, words)
    features = features.masked_fill(~present[..., None], content).requires_grad_()
    logits = model(features, present, words)
    assert torch.equal(logits, before)
    for name, gradient in gradients(model, features, present, words).items():
        assert torch.equal(gradient, expected[name]), name
    logits.square().sum().backward()
    assert (features.grad[~present] == 0).all()
    assert (features.grad[present] != 0).any()


def test_padding_gets_no_attention_and_more_of_it_changes_no_logits():
    model, (features, present, words) = captioner(), batch()
    memory = model.encode(features, present)
    attention = model.step(torch.zeros(3, dtype=torch.long), model.begin(memory), memory).attention
    assert (attention[~present] == 0).all()
    assert (attention[present] > 0).all()
    wider = torch.cat([features, torch.randn_like(features)], 1), torch.cat([present, present & False], 1)
    assert relative_error(model(*wider, words), model(features, present, words)) < 1e-14


def test_scheduled_sampling_replaces_the_share_of_words_that_is_asked_for_and_never_the_first():
    model, (features, present, _) = captioner(vocabulary=400), batch(images=2)
    words = torch.full((400, 12), 7)
    words[:, 0] = 0
    memory = model.encode(features[:2], present[:2])
    mixed = model._scheduled_sampling(memory, words, 0.25)
    assert (mixed[:, 0] == 0).all()
    assert (words[:, 1:] == 7).all(), "the caller's words were written into"
    share = (mixed[:, 1:] != 7).double().mean().item()
    assert abs(share - 0.25) < 0.03


def test_scheduled_sampling_draws_from_the_models_distribution_after_the_words_so_far():
    """The weights say that 3 follows on 0, and 5 on everything else: nothing is left to chance."""
    model, (features, present, words) = captioner(), batch()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # h² is positive after word 0 and negative after others; the word's gate g carries it through both LSTMs
        model.word_embedding.weight.fill_(-1)
        model.word_embedding.weight[0] = 1
        model.attention_lstm.word.weight[2 * 5 : 3 * 5] = 100
        model.attention_lstm.image.bias[1 * 5 : 2 * 5] = -100  # forget
        model.language_lstm.attention.weight[2 * 5 : 3 * 5] = 100
        model.language_lstm.attended.bias[1 * 5 : 2 * 5] = -100
        model.output.weight[3], model.output.weight[5] = 1000, -1000
    mixed = model._scheduled_sampling(model.encode(features, present), words, 1.0)
    assert mixed[0].tolist() == [0, 3, 5, 5, 5, 5]


def test_scheduled_sampling_trains_on_the_mixed_words():
    model, (features, present, words) = captioner(), batch()
    torch.manual_seed(1)
    mixed = model._scheduled_sampling(model.encode(features, present), words, 0.5)
    assert not torch.equal(mixed, words)
    torch.manual_seed(1)
    logits = model(features, present, words, sample_probability=0.5)
    assert torch.equal(logits, model(features, present, mixed))
    assert logits.requires_grad


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model, inputs = captioner(dropout=0.5), batch()
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))


@pytest.mark.parametrize(("images", "regions", "vocabulary", "steps"), [(0, 3, 11, 4), (2, 1, 2, 1), (1, 1, 2, 3)])
@pytest.mark.parametrize("product", ["p", "pr", "r"])
def test_degenerate_sizes(images, regions, vocabulary, steps, product):
    model = pr.convert(captioner(vocabulary=vocabulary), product)
    features, present = torch.randn(images, regions, 6).double(), torch.ones(images, regions, dtype=torch.bool)
    words = torch.randint(0, vocabulary, (3 * images, steps))
    words[:, 0] = 0
    logits = model(features, present, words, sample_probability=0.5)
    assert logits.shape == (3 * images, steps, vocabulary)
    cross_entropy(logits, targets_of(words)).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_features_of_another_width_are_refused_with_both_widths():
    features, present, words = batch(width=7)
    with pytest.raises(InputError, match=r"\(3, 4, 7\).*\(images, regions, 6\)"):
        captioner()(features, present, words)


def test_an_image_without_regions_is_named():
    features, present, words = batch()
    present[1] = False
    with pytest.raises(InputError, match="image 1 of the batch has no regions"):
        captioner()(features, present, words)


def test_captions_that_do_not_belong_to_the_images_are_refused():
    features, present, words = batch()
    with pytest.raises(InputError, match="5 captions for 3 images"):
        captioner()(features, present, words[:5])
