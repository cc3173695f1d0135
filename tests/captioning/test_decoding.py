"""Decoding: against brute force, under every limit, at every degenerate size."""

import brute_force
import pytest
import torch

import prproduct as pr
from prproduct.captioning.decoding import Limits, beam, greedy, sample
from prproduct.captioning.losses import caption_mask, log_probabilities
from prproduct.captioning.model import Captioner, Memory, State, Step
from prproduct.lab.errors import InputError


def captioner(vocabulary, seed=0, sharpness=6.0):
    """With logits far enough apart that captions differ and end at different places."""
    torch.manual_seed(seed)
    model = Captioner(vocabulary, 4, hidden=6, embedding=5, attention=3, dropout=0.0).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        model.output.weight.mul_(sharpness / 2)
        model.output.bias[0] += 1.5
    return model


def encoded(model, images=4, regions=3):
    present = torch.ones(images, regions, dtype=torch.bool)
    present[1::2, -1] = regions == 1
    return model.encode(torch.randn(images, regions, 4, dtype=torch.float64), present)


def one(memory, image):
    return memory.select(torch.tensor([image]))


class Table:
    """A model whose next word depends on the last one only: row of a table of logits."""

    def __init__(self, logits):
        self.logits = torch.as_tensor(logits, dtype=torch.float64)
        self.rows = []  # how many rows each step had

    def begin(self, memory):
        return State(*[torch.zeros(memory.images, 1)] * 4)

    def step(self, words, state, memory):
        self.rows.append(len(words))
        return Step(
            self.logits[words], state, memory.present.double().repeat_interleave(len(words) // memory.images, 0)
        )

    def memory(self, images):
        return Memory(*[torch.zeros(images, 2, 1).double()] * 2, torch.zeros(images, 1), torch.ones(images, 2).bool())


def spoken(words):
    """Ids up to and with the end."""
    return words[caption_mask(words)].tolist()


LIMITS = [
    Limits(longest=5),
    Limits(longest=5, shortest=3),
    Limits(longest=5, forbidden_id=5),
    Limits(longest=8, block_trigrams=True),
    Limits(longest=8, shortest=6, forbidden_id=1, block_trigrams=True),
    Limits(longest=1),
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize(("beams", "n_best", "power"), [(1, 1, 0.0), (3, 3, 0.0), (3, 1, 0.7), (5, 8, 1.0)])
def test_beam_search_of_a_batch_is_the_brute_force_search_of_each_image(limits, beams, n_best, power):
    for seed in range(2):
        model = captioner(6, seed)
        memory = encoded(model)
        captions = beam(model, memory, beams=beams, n_best=n_best, length_power=power, limits=limits)
        for image in range(memory.images):
            expected = brute_force.beam(model, one(memory, image), limits, beams, n_best, power)
            for place, (score, words) in enumerate(expected):
                assert spoken(captions.words[image, place]) == words
                assert captions.scores[image, place].item() == pytest.approx(score, rel=1e-12)
            assert captions.scores[image, len(expected) :].isneginf().all()
            assert (captions.words[image, len(expected) :] == 0).all()


@pytest.mark.parametrize("limits", [Limits(longest=4), Limits(longest=4, shortest=2, forbidden_id=3)], ids=str)
@pytest.mark.parametrize("power", [0.0, 0.7])
def test_with_as_many_beams_as_beginnings_the_search_finds_the_best_of_all_captions(limits, power):
    model = captioner(4)
    memory = encoded(model, images=2)
    captions = beam(model, memory, beams=3**4, n_best=10, length_power=power, limits=limits)
    for image in range(2):
        best = brute_force.exhaustive(model, one(memory, image), limits, 4, power)[:10]
        assert [spoken(words) for words in captions.words[image]] == [words for _, words in best]
        assert captions.scores[image].tolist() == pytest.approx([score for score, _ in best], rel=1e-12)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_of_equals_the_better_beginning_and_the_lower_id_come_first(beams):
    for logits in (torch.zeros(5, 5), torch.tensor([[0.0, 1, 1, 1, 1]] * 5), torch.tensor([[1.0, 1, 0, 1, 0]] * 5)):
        model, limits = Table(logits), Limits(longest=3)
        captions = beam(model, model.memory(2), beams=beams, n_best=6, limits=limits)
        expected = brute_force.beam(model, model.memory(1), limits, beams, 6)
        for image in range(2):
            found = [spoken(w) for w, s in zip(captions.words[image], captions.scores[image], strict=True) if s > -1e9]
            assert found == [words for _, words in expected]


def test_one_beam_is_greedy():
    for seed in range(5):
        model = captioner(7, seed)
        memory = encoded(model)
        single, likeliest = beam(model, memory, beams=1), greedy(model, memory)
        assert torch.equal(single.words, likeliest.words)
        assert torch.allclose(single.log_probabilities, likeliest.log_probabilities)
        assert torch.allclose(single.attention, likeliest.attention)


@pytest.mark.parametrize("decode", [greedy, beam, sample])
def test_log_probabilities_and_attention_are_those_of_the_returned_words(decode):
    """Of each caption on its own, by whole sequences: so histories follow their hypotheses through the search."""
    model = captioner(8)
    features = torch.randn(4, 3, 4, dtype=torch.float64)
    present = torch.ones(4, 3, dtype=torch.bool)
    present[2, 1:] = False
    with torch.no_grad():
        memory = model.encode(features, present)
        captions = decode(model, memory, **({"n_best": 3} if decode is beam else {}))
    _, count, steps = captions.words.shape
    words = captions.words.flatten(0, 1)
    inputs = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], 1)
    expected = log_probabilities(model(features, present, inputs), words)
    assert torch.allclose(captions.log_probabilities.flatten(0, 1), expected)
    assert torch.allclose(captions.scores, captions.log_probabilities.sum(-1))
    state = model.begin(memory).repeat(count)
    for place in range(steps):
        _, state, attention = model.step(inputs[:, place], state, memory)
        looked = captions.attention.flatten(0, 1)[:, place]
        assert torch.allclose(looked, attention * caption_mask(words)[:, place, None])
    assert (captions.words.flatten(0, 1)[~caption_mask(words)] == 0).all()
    assert len({len(spoken(caption)) for caption in words}) > 1, "all are of one length"


def test_a_model_that_never_ends_gives_captions_that_are_cut_off():
    model = Table([[-torch.inf, 2, 1, 0]] * 4)
    for decode in (greedy, sample, beam):
        captions = decode(model, model.memory(3), limits=Limits(longest=7))
        assert captions.words.shape == (3, 1, 7)
        assert (captions.words > 0).all()
        assert captions.scores.isfinite().all()
    assert beam(model, model.memory(3), n_best=5, limits=Limits(longest=7)).scores.isfinite().all()


def test_images_that_are_done_are_not_computed_any_more():
    """Images differ in this: one ends at once, the other after four words."""
    counts = []

    class Two(Table):
        def begin(self, memory):
            return State(memory.image_gates, *[torch.zeros(memory.images, 1)] * 3)

        def step(self, words, state, memory):
            counts.append(memory.images)
            assert torch.equal(state.attention_hidden[:: len(words) // memory.images], memory.image_gates)
            out = super().step(words, state, memory)
            stops = (state.attention_hidden[:, 0] > 0) | (words == 4)
            ending = torch.tensor([50.0, 0, 0, 0, 0]).double()
            return out._replace(logits=torch.where(stops[:, None], ending, out.logits))

    model = Two(torch.eye(5).roll(1, 1) * 50)  # 0 → 1 → 2 → 3 → 4
    memory = model.memory(2)._replace(image_gates=torch.tensor([[1.0], [0.0]]))
    for decode in (greedy, beam):
        counts.clear()
        captions = decode(model, memory)
        assert counts == [2, 1, 1, 1, 1]
        assert captions.words[0].eq(0).all()
        assert captions.words[1, 0, :6].tolist() == [1, 2, 3, 4, 0, 0]


def test_a_search_steps_one_row_at_first_and_then_as_many_as_there_are_beams():
    model = Table([[-1000.0, 3, 2, 1, 0]] * 5)
    beam(model, model.memory(3), beams=4, limits=Limits(longest=4))
    assert model.rows == [3, 12, 12, 12]


def test_the_minimum_holds_unless_nothing_else_can_be_said():
    model = Table([[9.0, 0, 0]] * 3)
    for decode in (greedy, sample, beam):
        words = decode(model, model.memory(2), limits=Limits(shortest=4)).words
        assert (words[..., :4] > 0).all()
        assert (
            decode(Table([[9.0, 0]] * 2), model.memory(1), limits=Limits(shortest=4, forbidden_id=1)).words == 0
        ).all()


def test_a_suppressed_word_is_never_said_and_log_probabilities_stay_the_models():
    model = Table([[0.0, 5, 1]] * 3)
    for decode in (greedy, sample, beam):
        assert (decode(model, model.memory(8), limits=Limits(forbidden_id=1)).words != 1).all()
    expected = model.logits[0].log_softmax(-1)[2].item()
    for decode in (greedy, beam):
        captions = decode(model, model.memory(1), limits=Limits(longest=1, shortest=1, forbidden_id=1))
        assert captions.log_probabilities[0, 0, 0].item() == pytest.approx(expected)


def test_no_trigram_comes_twice():
    model = Table(torch.tensor([[-1000.0, *range(12, 0, -1)]] * 13))
    assert (greedy(model, model.memory(1)).words == 1).all()
    for decode in (greedy, sample, beam):
        for caption in decode(model, model.memory(3), limits=Limits(longest=20, block_trigrams=True)).words[:, 0]:
            said = caption[caption > 0].tolist()
            trigrams = list(zip(said, said[1:], said[2:], strict=False))
            assert len(set(trigrams)) == len(trigrams)
            assert len(said) == 20


def test_samples_are_drawn_with_the_models_probabilities_at_the_temperature():
    model = Table([[0.5, 1.0, 0.0, -1.0]] * 4)
    for temperature in (0.5, 1.0, 2.0):
        captions = sample(model, model.memory(1), samples=20_000, temperature=temperature, limits=Limits(longest=1))
        expected = (model.logits[0] / temperature).softmax(-1)
        shares = captions.words.flatten().bincount(minlength=4) / 20_000
        assert torch.allclose(shares.double(), expected, atol=0.015)
        assert torch.allclose(captions.log_probabilities[0, :, 0].exp(), expected[captions.words[0, :, 0]])


def test_the_same_generator_draws_the_same_samples_and_the_global_one_is_left_alone():
    model = captioner(9)
    memory = encoded(model)
    before = torch.get_rng_state()
    first, again, other = (
        sample(model, memory, samples=3, generator=torch.Generator().manual_seed(seed)).words for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("product", ["p", "pr"])
def test_gradients_of_sampled_log_probabilities_are_those_of_whole_sequences(product):
    model = pr.convert(captioner(8), product)
    features, present = torch.randn(3, 2, 4, dtype=torch.float64), torch.ones(3, 2, dtype=torch.bool)
    captions = sample(model, model.encode(features, present), samples=2, limits=Limits(longest=5))
    words = captions.words.flatten(0, 1)
    inputs = torch.cat([torch.zeros_like(words[:, :1]), words[:, :-1]], 1)
    together = log_probabilities(model(features, present, inputs), words)
    weights = torch.randn_like(together)
    parameters = list(model.parameters())
    got = torch.autograd.grad((captions.log_probabilities.flatten(0, 1) * weights).sum(), parameters)
    expected = torch.autograd.grad((together * weights).sum(), parameters)
    for one_gradient, other in zip(got, expected, strict=True):
        assert torch.allclose(one_gradient, other, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("decode", [greedy, sample, beam])
@pytest.mark.parametrize(("images", "regions", "vocabulary"), [(0, 3, 5), (1, 1, 2), (3, 1, 2), (2, 2, 1)])
def test_degenerate_sizes(decode, images, regions, vocabulary):
    model = captioner(vocabulary)
    memory = model.encode(torch.randn(images, regions, 4).double(), torch.ones(images, regions, dtype=torch.bool))
    captions = decode(model, memory)
    assert captions.words.shape == (images, 1, 16)
    assert captions.attention.shape == (images, 1, 16, regions)
    assert captions.log_probabilities.shape == (images, 1, 16)
    assert captions.scores.isfinite().all()


def test_half_precision_logits_give_log_probabilities_in_float32():
    model = captioner(6).bfloat16()
    memory = encoded(captioner(6))
    memory = Memory(*(t if t.dtype == torch.bool else t.bfloat16() for t in memory))
    for decode in (greedy, sample, beam):
        assert decode(model, memory).log_probabilities.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, e: Limits(longest=0), "at most 0 words"),
        (lambda m, e: Limits(longest=3, shortest=4), "at least 4 words; it must be from 0 to 3"),
        (lambda m, e: Limits(forbidden_id=0), "id 0 that is never said"),
        (lambda m, e: greedy(m, e, limits=Limits(forbidden_id=99)), "id 99 that is never said, in a vocabulary of 5"),
        (lambda m, e: beam(m, e, beams=0), "0 beams; there must be at least 1"),
        (lambda m, e: beam(m, e, n_best=0), "the 0 best captions"),
        (lambda m, e: beam(m, e, length_power=-1.0), "length power of -1.0"),
        (lambda m, e: beam(m, e, length_power=300.0), "length power of 300.0; it must be from 0 to 10"),
        (lambda m, e: sample(m, e, samples=0), "0 samples"),
        (lambda m, e: sample(m, e, temperature=0.0), "temperature of 0.0.*use greedy"),
    ],
)
def test_what_cannot_be_decoded_is_said_in_one_line(call, message):
    model = captioner(5)
    with pytest.raises(InputError, match=message):
        call(model, encoded(model))
