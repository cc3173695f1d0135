"""convert and revert: the same objects under another class."""

import copy
import io

import pytest
import torch
from torch import nn

import prproduct as pr
from prproduct.products import PR, P, Product, Tempered

pytestmark = pytest.mark.usefixtures("device")


class WithoutState(nn.Linear):
    """In the place of a recurrent layer."""

    def forward(self, x):
        return (super().forward(x),)


class Net(nn.Module):
    """One of each: convolution, normalisation, recurrence, attention, a tied and a shared layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.norm(self.conv(self.embedding(tokens).mT)).mT
        x = self.lstm(x)[0]
        x = x + self.attention(x, x, x)[0]
        return self.head(self.hidden(self.hidden(x).relu()))


CONVERTED = ["conv", "lstm", "attention", "hidden", "head"]


@pytest.fixture(name="net")
def _net():
    return Net()


@pytest.fixture(name="tokens")
def _tokens():
    return torch.randint(0, 11, (3, 7))


def kinds(model):
    return [type(m) for m in model.modules()]


def test_converts_in_place_and_returns_the_model(net):
    assert pr.convert(net) is net
    layer = nn.Linear(3, 2)
    assert pr.convert(layer) is layer
    assert type(layer) is pr.nn.Linear


def test_every_known_layer_gets_the_product(net):
    pr.convert(net, "pr-w")
    assert {name for name, m in net.named_modules() if isinstance(m, pr.nn.ProductLayer)} == set(CONVERTED)
    assert all(getattr(net, name).product == pr.products.resolve("pr-w") for name in CONVERTED)


def test_outputs_stay_bit_for_bit_in_training_and_evaluation(net, tokens):
    net.lstm = WithoutState(8, 8)  # what recurs sums in another order: the next test
    twin = copy.deepcopy(net)
    pr.convert(net)
    for mode in (True, False):
        assert torch.equal(net.train(mode)(tokens), twin.train(mode)(tokens))
        with torch.no_grad():
            assert torch.equal(net(tokens), twin(tokens))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_transformer_drops_the_same_places_under_the_same_seed(batch_first):
    x, y = torch.randn(4, 6, 16), torch.randn(4, 6, 16)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    for model, inputs in ((layer, (x,)), (nn.Transformer(16, 2, 1, 1, 32, batch_first=batch_first), (x, y))):
        results = []
        for _ in range(2):
            torch.manual_seed(0)
            results.append(model.train()(*inputs))
            pr.convert(model)
        assert torch.equal(*results)
        assert pr.check(model, *inputs).outputs_equal


def test_outputs_of_recurrent_layers_stay_up_to_rounding_and_bit_for_bit_without_gradients(net, tokens):
    twin = copy.deepcopy(net).eval()
    pr.convert(net).eval()
    torch.testing.assert_close(net(tokens), twin(tokens), rtol=0, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(net(tokens), twin(tokens))


def test_parameters_buffers_hooks_flags_names_and_state_dict_are_the_same_objects(net):
    calls = []
    net.hidden.register_forward_hook(lambda *_: calls.append("forward"))
    net.conv.weight.register_hook(lambda grad: calls.append("gradient"))
    net.conv.requires_grad_(False).weight.requires_grad_()
    net.lstm.eval()
    before = {name: id(t) for name, t in [*net.named_parameters(), *net.named_buffers()]}
    attributes = {name: dict(vars(m)) for name, m in net.named_modules()}
    pr.convert(net)
    assert {name: id(t) for name, t in [*net.named_parameters(), *net.named_buffers()]} == before
    for name, m in net.named_modules():
        now = {key: value for key, value in vars(m).items() if key != "product"}
        assert now.keys() == attributes[name].keys()
        assert all(now[key] is attributes[name][key] for key in now), name
    net(torch.randint(0, 11, (2, 5))).sum().backward()
    assert calls.count("forward") == 2
    assert calls.count("gradient") == 1
    assert net.head.weight is net.embedding.weight


def test_an_optimizer_built_before_goes_on(net, tokens):
    twin = pr.convert(copy.deepcopy(net))
    early = torch.optim.AdamW(net.parameters(), lr=0.1)
    pr.convert(net)
    late = torch.optim.AdamW(twin.parameters(), lr=0.1)
    start = net.hidden.weight.detach().clone()
    for model, optimizer in ((net, early), (twin, late)):
        model(tokens).square().mean().backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert not torch.equal(net.hidden.weight, start)


def test_checkpoints_load_strictly_both_ways(net, tokens):
    other = pr.convert(Net())
    other.load_state_dict(net.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(other.eval()(tokens), net.eval()(tokens))
    back = Net()
    back.load_state_dict(other.state_dict(), strict=True)
    assert list(other.state_dict()) == list(net.state_dict())


def test_filter_chooses_by_layer_and_by_name(net):
    seen = []

    def choose(layer, name):
        seen.append((name, type(layer)))
        return isinstance(layer, nn.Linear) and name != "head"

    pr.convert(net, filter_fn=choose)
    assert type(net.hidden) is pr.nn.Linear
    assert type(net.head) is nn.Linear
    assert type(net.conv) is nn.Conv1d
    expected = [nn.Conv1d, nn.LSTM, nn.MultiheadAttention, nn.Linear, nn.Linear]
    assert seen == list(zip(CONVERTED, expected, strict=True))


def test_several_products_in_one_model(net):
    pr.convert(net, "pr")
    pr.convert(net, "tempered:0.5", filter_fn=lambda layer, name: name == "conv")
    assert net.conv.product == Tempered(0.5)
    assert net.hidden.product == PR()


def test_converting_twice_changes_the_product_and_nothing_else(net):
    pr.convert(net)
    classes, attributes = kinds(net), [dict(vars(m)) for m in net.modules()]
    pr.convert(net, "pr-w")
    assert kinds(net) == classes
    for m, before in zip(net.modules(), attributes, strict=True):
        assert {k for k, v in vars(m).items() if v is not before[k]} <= {"product"}
    assert str(net.hidden.product) == "pr-w"


def test_revert_gives_back_the_classes_exactly(net, tokens):
    before, attributes = kinds(net), [set(vars(m)) for m in net.modules()]
    assert pr.revert(pr.convert(net)) is net
    assert kinds(net) == before
    assert [set(vars(m)) for m in net.modules()] == attributes
    assert pr.revert(net) is net
    net(tokens)


def test_revert_of_a_layer_that_was_built_as_ours():
    assert type(pr.revert(pr.nn.GRU(3, 4))) is nn.GRU


def test_revert_refuses_a_users_own_kind_of_our_layer_and_changes_nothing():
    class Mine(pr.nn.Linear):
        pass

    model = nn.Sequential(pr.nn.Linear(2, 2), Mine(2, 2))
    with pytest.raises(TypeError, match=r"Mine .*convert it to 'p'"):
        pr.revert(model)
    assert kinds(model)[1:] == [pr.nn.Linear, Mine]
    pr.convert(model, "p")
    assert model[1].product == P()


def test_an_unknown_product_changes_nothing(net):
    before = kinds(net)
    with pytest.raises(ValueError, match="unknown product 'prr'"):
        pr.convert(net, "prr")
    with pytest.raises(TypeError, match="product must be"):
        pr.convert(net, 3)
    assert kinds(net) == before


def test_a_filter_that_fails_changes_nothing(net):
    before = kinds(net)
    with pytest.raises(ZeroDivisionError):
        pr.convert(net, filter_fn=lambda layer, name: 1 / (name != "head"))
    assert kinds(net) == before


def test_a_layer_that_refuses_its_class_takes_all_others_back(net):
    class Stubborn(nn.Linear):
        def __setattr__(self, name, value):
            if name == "__class__" and value is not Stubborn:
                raise TypeError("no other class for me")
            super().__setattr__(name, value)

    net.hidden = Stubborn(8, 8)
    pr.convert(net, "pr-w", filter_fn=lambda layer, name: name == "conv")
    before = kinds(net)
    with pytest.raises(TypeError, match="no other class for me"):
        pr.convert(net)
    assert kinds(net) == before
    assert str(net.conv.product) == "pr-w"
    assert not hasattr(net.lstm, "product")


def test_nothing_to_convert_says_what_there_is_and_why():
    with pytest.raises(ValueError, match=r"nothing to convert in Sequential: 2 × Embedding \(embedding: .*BatchNorm1d"):
        pr.convert(nn.Sequential(nn.Embedding(3, 2), nn.Embedding(3, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match="ReLU: no parameters at all"):
        pr.convert(nn.ReLU())
    with pytest.raises(ValueError, match="filter_fn selected none of the 2 layers"):
        pr.convert(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), filter_fn=lambda layer, name: False)


def test_a_module_used_twice_is_converted_once():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    names = []
    pr.convert(model, filter_fn=lambda layer, name: names.append(name) or True)
    assert names == ["0"]
    assert model[0] is model[2] is layer
    assert type(layer) is pr.nn.Linear


@pytest.mark.parametrize("function", [pr.convert, pr.revert, pr.report, pr.check])
def test_what_is_no_module_is_refused_in_a_line(function):
    for wrong in ([nn.Linear(2, 2)], None, nn.Linear, abs):
        with pytest.raises(TypeError, match=rf"^{function.__name__} takes a .*, not .*$"):
            function(wrong)


def test_a_converted_model_is_saved_whole(net, tokens):
    pr.convert(net, Tempered(0.25)).eval()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(tokens), net(tokens))
    assert loaded.hidden.product == Tempered(0.25)
    assert kinds(pr.revert(loaded)) == kinds(Net())


class HalfLength(Product):
    """A user's product."""

    def gains(self, pair):
        return pr.products.Gains(0.5, 1.0)


def test_a_product_of_ones_own_in_a_whole_model(net, tokens):
    pr.convert(net, HalfLength())
    net(tokens).sum().backward()
    assert "HalfLength" in str(pr.report(net))


# What the paper's own layers save: PRConv2d a buffer of ones, PRLSTMCell each weight under a second name.
def test_checkpoints_of_the_papers_convolution_load():
    ours = pr.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    saved = {
        **nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict(),
        "0.ones_weight": torch.ones(1, 1, 3, 3),
    }
    ours.load_state_dict(saved)
    assert torch.equal(ours[0].weight, saved["0.weight"])
    assert "0.ones_weight" in saved
    with pytest.raises(RuntimeError, match="ones_weight"):
        ours.load_state_dict({**saved, "0.ones_weight": torch.zeros(1, 1, 3, 3)})


def test_checkpoints_of_the_papers_lstm_cell_load():
    ours, theirs = pr.convert(nn.ModuleDict({"cell": nn.LSTMCell(3, 4)})), nn.LSTMCell(3, 4).state_dict()
    saved = {f"cell.{key}": value for key, value in theirs.items()}
    for part in ("ih", "hh"):
        for kind in ("weight", "bias"):
            saved[f"cell.{part}_linear.{kind}"] = theirs[f"{kind}_{part}"]
    ours.load_state_dict(saved)
    assert all(torch.equal(value, theirs[key.removeprefix("cell.")]) for key, value in ours.state_dict().items())
    with pytest.raises(RuntimeError, match="ih_linear"):
        ours.load_state_dict({**saved, "cell.ih_linear.bias": torch.ones(16)})
    only_second_names = {key: value for key, value in saved.items() if "linear" in key}
    ours.load_state_dict(only_second_names)


def test_converting_a_converted_layer_changes_what_is_given_and_nothing_else():
    layer = pr.convert(nn.Linear(4, 3), "tempered:0.3", memory="recompute")
    pr.convert(layer, "r")
    assert (str(layer.product), layer.product_memory) == ("r", "recompute")
    pr.convert(layer, memory="save")
    assert (str(layer.product), layer.product_memory) == ("r", "save")
    pr.convert(layer)
    assert (str(layer.product), layer.product_memory) == ("r", "save")
    assert str(pr.convert(nn.Linear(4, 3)).product) == "pr"


class Experts(nn.Module):
    """All experts in one parameter, as mixture-of-experts layers have them."""

    def __init__(self, count):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(count, 8, 8))

    def forward(self, x):
        return torch.bmm(x.expand(len(self.weights), -1, -1), self.weights).sum(0)


def test_a_large_part_that_stays_under_p_is_said_in_one_line_with_the_largest():
    model = nn.Sequential(nn.Linear(8, 8), Experts(2), Experts(4))
    with pytest.warns(
        UserWarning, match=r"86% of the weights in matrices stay .* those of Experts at 2: no lay"
    ) as said:
        pr.convert(model)
    assert len(said) == 1
    assert len(str(said[0].message).splitlines()) == 1


class OwnForward(nn.Linear):
    def forward(self, x):
        return x @ self.weight.T


def test_layers_with_a_forward_of_their_own_count_as_left():
    model = nn.Sequential(OwnForward(10, 10), OwnForward(10, 10), nn.Linear(10, 2))
    with pytest.warns(
        UserWarning, match=r"91% of the weights .* OwnForward at 1: .*OwnForward has a forward of its own"
    ):
        pr.convert(model)


def test_a_small_part_that_stays_under_p_is_not_worth_a_line():
    pr.convert(nn.Sequential(nn.Linear(64, 64), Experts(1), nn.Embedding(1000, 64)))


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(2, 2), OwnForward(10, 10))
    with pytest.raises(UserWarning, match="stay under the inner product"):  # warnings are errors in all tests
        pr.convert(model)
    assert type(model[0]) is nn.Linear
    assert not hasattr(model[0], "product")
