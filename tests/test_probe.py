"""AngleProbe against brute force, and a model that does not notice it."""

import copy
import io
import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_sequence
from transformers.pytorch_utils import Conv1D

import prproduct as pr
from prproduct.probe import angles

BINS = 20


def brute_force(weight: Tensor, data: Tensor) -> dict:
    """The statistics of weight vectors (groups, n, d) with data vectors (samples, groups, m, d), all at once."""
    weight, data = weight.double(), data.double()
    norms = weight.norm(dim=-1)[None, :, :, None] * data.norm(dim=-1)[:, :, None]
    p = torch.einsum("gnd,sgmd->sgnm", weight, data)
    cos = torch.where(norms > 0, p / norms, 0.0).abs().clamp(max=1)
    sin = (1 - cos.square()).sqrt()
    return {
        "pairs": sin.numel(),
        "zero_pairs": int((norms == 0).sum()),
        "min_sin": sin.min().item(),
        "mean_sin": sin.mean().item(),
        "max_sin": sin.max().item(),
        "max_cos": cos.max().item(),
        "sample_min_sin": sin.flatten(1).amin(1).mean().item(),
        "histogram": sin.histc(BINS, 0, 1).int().tolist(),
    }


def rows(weight: Tensor, data: Tensor) -> dict:
    """Brute force for a linear product: each row is a sample."""
    return brute_force(weight[None], data.reshape(-1, 1, 1, data.shape[-1]))


def assert_found(record, expected: dict, tolerance: float = 1e-9) -> None:
    assert (record.pairs, record.zero_pairs) == (expected["pairs"], expected["zero_pairs"])
    assert sum(record.histogram) == record.pairs
    moved = sum(abs(a - b) for a, b in zip(record.histogram, expected["histogram"], strict=True)) / 2
    assert moved <= record.pairs * 1e-3, "pairs on the edge of a bin aside, the histograms are equal"
    for name in ("min_sin", "mean_sin", "max_sin", "max_cos", "sample_min_sin"):
        assert getattr(record, name) == pytest.approx(expected[name], abs=tolerance), name


def probed(module: nn.Module, *args, **kwargs) -> dict:
    """The records of one call, by part or by name."""
    with pr.AngleProbe(module) as probe:
        module(*args, **kwargs)
    return {record.part or record.layer: record for record in probe.records}


# ---- the numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (5,), (700, 5)])
@pytest.mark.parametrize("layer", [nn.Linear, pr.nn.Linear])
def test_linear_layers_pair_every_row_with_every_weight_vector(layer, shape):
    module = layer(5, 300).double()
    x = torch.randn(shape).double()
    assert_found(probed(module, x)[type(module).__name__], rows(module.weight, x))


def test_blocks_are_bounded_and_add_up_to_all_pairs(monkeypatch):
    module, x = nn.Linear(6, 64).double(), torch.randn(1000, 6).double()
    monkeypatch.setattr(angles, "PAIRS_PER_BLOCK", 64 * 50)
    seen = []
    add = angles.AngleStatistics.add
    monkeypatch.setattr(
        angles.AngleStatistics, "add", lambda self, cos, zero: seen.append(cos.numel()) or add(self, cos, zero)
    )
    record = probed(module, x)["Linear"]
    assert seen == [64 * 50] * 20
    assert_found(record, rows(module.weight, x))
    seen.clear()
    wide, x = nn.Linear(6, 250).double(), torch.randn(40, 6).double()
    assert_found(probed(wide, x)["Linear"], rows(wide.weight, x))
    assert seen == [32 * 100, 32 * 100, 32 * 50, 8 * 100, 8 * 100, 8 * 50]
    seen.clear()
    conv, images = nn.Conv2d(3, 10, 3).double(), torch.randn(9, 3, 12, 12).double()
    assert probed(conv, images)["Conv2d"].pairs == 9 * 10 * 100
    assert seen == [3000] * 3


def windows(input: Tensor, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple, groups: int) -> Tensor:
    """Unfolded: (batch, groups, windows, numbers)."""
    columns = F.unfold(input, kernel, dilation, padding, stride)  # (batch, channels · kernel, windows)
    return columns.unflatten(1, (groups, -1)).transpose(2, 3)


def zero_stuffed(input: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
    """The input of a transposed convolution as that of an ordinary one of stride 1."""
    batch, channels, *size = input.shape
    spread = [(n - 1) * s + 1 for n, s in zip(size, layer.stride, strict=True)]
    stuffed = input.new_zeros(batch, channels, *spread)
    stuffed[:, :, :: layer.stride[0], :: layer.stride[1]] = input
    axes = zip(layer.kernel_size, layer.dilation, layer.padding, layer.output_padding, strict=True)
    pads = [(d * (k - 1) - p, d * (k - 1) - p + extra) for k, d, p, extra in axes]
    return F.pad(stuffed, [*pads[1], *pads[0]])


CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": (2, 1), "padding": (3, 0)},
    {"groups": 2, "padding": 1, "bias": False},
    {"groups": 4, "stride": (1, 3), "padding": 2},
    {"padding": "same", "dilation": 2},
    {"padding": (1, 2), "padding_mode": "circular"},
    {"padding": "same", "padding_mode": "reflect"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions_pair_every_window_with_the_kernels_of_its_group(options):
    layer = nn.Conv2d(4, 8, 3, **options).double()
    x = torch.randn(5, 4, 9, 11).double()
    x[0] = 0  # windows of zeros
    x[1, :2] = 0  # and those of one group alone
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    data = windows(padded, layer.kernel_size, layer.stride, (0, 0), layer.dilation, layer.groups)
    expected = brute_force(layer.weight.flatten(1).unflatten(0, (layer.groups, -1)), data)
    record = probed(nn.Sequential(layer), x)["0"]
    assert_found(record, expected)
    assert record.zero_pairs > 0
    alone = probed(layer, x[2])["Conv2d"]  # unbatched
    assert_found(alone, brute_force(layer.weight.flatten(1).unflatten(0, (layer.groups, -1)), data[2:3]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (3, 1), "dilation": 2, "groups": 2},
        {"padding": 3, "stride": 2},
    ],
    ids=str,
)
def test_transposed_convolutions_are_convolutions_of_the_zero_stuffed_input(options):
    layer = nn.ConvTranspose2d(4, 6, 3, **options).double()
    x = torch.randn(3, 4, 5, 6).double()
    stuffed = zero_stuffed(x, layer)
    data = windows(stuffed, layer.kernel_size, (1, 1), (0, 0), layer.dilation, layer.groups)
    kernels = layer.weight.flip(2, 3).unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(2)
    assert_found(probed(layer, x)["ConvTranspose2d"], brute_force(kernels, data))


def test_a_transposed_convolution_is_read_at_the_output_size_it_was_asked_for():
    layer, x = nn.ConvTranspose2d(2, 3, 3, stride=2).double(), torch.randn(1, 2, 4, 4).double()
    sizes = [probed(layer, x, output_size=size)["ConvTranspose2d"].pairs for size in ([9, 9], [10, 10])]
    assert sizes == [3 * 81, 3 * 100]


def test_convolutions_in_one_and_three_dimensions():
    line, x = nn.Conv1d(2, 3, 4, stride=2).double(), torch.randn(3, 2, 11).double()
    data = x.unfold(2, 4, 2).transpose(1, 2).flatten(2)[:, None]  # (batch, 1, windows, channels · kernel)
    assert_found(probed(line, x)["Conv1d"], brute_force(line.weight.flatten(1)[None], data))
    volume, x = nn.Conv3d(2, 3, 2).double(), torch.randn(2, 2, 4, 3, 5).double()
    cut = x.unfold(2, 2, 1).unfold(3, 2, 1).unfold(4, 2, 1)  # (batch, channels, *out, *kernel)
    data = cut.permute(0, 2, 3, 4, 1, 5, 6, 7).flatten(4).flatten(1, 3)[:, None]
    assert_found(probed(volume, x)["Conv3d"], brute_force(volume.weight.flatten(1)[None], data))


def literal_cell(kind: str, gates_i: Tensor, gates_h: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step as torch's documentation writes it."""
    if kind == "LSTM":
        i, f, g, o = (gates_i + gates_h).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if kind == "GRU":
        (ri, zi, ni), (rh, zh, nh) = gates_i.chunk(3), gates_h.chunk(3)
        r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
        n = (ni + r * nh).tanh()
        return (1 - z) * n + z * h, c
    return (gates_i + gates_h).relu(), c


def literal_recurrent(layer: nn.RNNBase, sequences: list[Tensor], first: list[Tensor] | None) -> dict[str, Tensor]:
    """The data vectors of every product, sequence by sequence, step by step."""
    data: dict[str, list[Tensor]] = {}
    kind = layer.mode.partition("_")[0]
    directions = 2 if layer.bidirectional else 1
    with torch.no_grad():
        for number, sequence in enumerate(sequences):
            for depth in range(layer.num_layers):
                outputs = []
                for direction in range(directions):
                    end = f"_l{depth}" + ("_reverse" if direction else "")
                    w = {name: getattr(layer, name + end) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
                    place = depth * directions + direction
                    sizes = (layer.proj_size or layer.hidden_size, layer.hidden_size)
                    h, c = (torch.zeros(size).double() for size in sizes)
                    if first is not None:
                        h, c = first[0][place, number], first[-1][place, number]
                    steps = {}
                    for t in reversed(range(len(sequence))) if direction else range(len(sequence)):
                        data.setdefault("input" + end, []).append(sequence[t])
                        data.setdefault("hidden" + end, []).append(h)
                        gates_i = w["weight_ih"] @ sequence[t] + w["bias_ih"]
                        h, c = literal_cell(kind, gates_i, w["weight_hh"] @ h + w["bias_hh"], h, c)
                        if layer.proj_size:
                            data.setdefault("projection" + end, []).append(h)
                            h = getattr(layer, "weight_hr" + end) @ h
                        steps[t] = h
                    outputs.append(torch.stack([steps[t] for t in range(len(sequence))]))
                sequence = torch.cat(outputs, dim=-1)
    return {name: torch.stack(vectors) for name, vectors in data.items()}


PARAMETERS = {"input": "weight_ih", "hidden": "weight_hh", "projection": "weight_hr"}


def assert_recurrent(layer: nn.RNNBase, found: dict, data: dict[str, Tensor]) -> None:
    assert found.keys() == data.keys()
    for part, vectors in data.items():
        kind, _, ending = part.partition("_")
        assert_found(found[part], rows(getattr(layer, f"{PARAMETERS[kind]}_{ending}"), vectors))


@pytest.mark.parametrize("package", [nn, pr.nn], ids=["native", "converted"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"num_layers": 3, "bidirectional": True}),
        ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
        ("GRU", {"num_layers": 2}),
        ("RNN", {"num_layers": 2, "bidirectional": True, "nonlinearity": "relu"}),
    ],
    ids=str,
)
def test_recurrent_layers_show_the_products_of_input_and_hidden_state(package, kind, options):
    layer = getattr(package, kind)(3, 4, **options).double()
    lengths = [2, 5, 4]
    sequences = [torch.randn(length, 3).double() for length in lengths]
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or 4, 4] if kind == "LSTM" else [4]
    first = [torch.randn(count, 3, size).double() for size in sizes]

    packed = pack_sequence(sequences, enforce_sorted=False)
    assert_recurrent(layer, probed(layer, packed), literal_recurrent(layer, sequences, None))
    state = tuple(first) if kind == "LSTM" else first[0]
    assert_recurrent(layer, probed(layer, packed, state), literal_recurrent(layer, sequences, first))

    equal = [sequence[:2] for sequence in sequences]
    expected = literal_recurrent(layer, equal, first)
    assert_recurrent(layer, probed(layer, torch.stack(equal, 1), state), expected)
    layer.batch_first = True
    assert_recurrent(layer, probed(layer, torch.stack(equal), hx=state), expected)
    alone = literal_recurrent(layer, equal[:1], None)
    assert_recurrent(layer, probed(layer, equal[0]), alone)  # unbatched


def test_cells_show_the_products_of_input_and_hidden_state_and_pool_the_steps_of_one_forward():
    class Loop(nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            state = None
            for row in x:
                state = self.cell(row, state)
            return state

    for name in ("LSTM", "GRU"):
        whole = getattr(nn, name)(3, 4).double()
        cell = getattr(pr.nn, f"{name}Cell")(3, 4).double()
        with torch.no_grad():
            for parameter in PARAMETERS.values():
                if parameter != "weight_hr":
                    getattr(cell, parameter).copy_(getattr(whole, f"{parameter}_l0"))
            for bias in ("bias_ih", "bias_hh"):
                getattr(cell, bias).copy_(getattr(whole, f"{bias}_l0"))
        x = torch.randn(5, 2, 3).double()
        data = literal_recurrent(whole, [x[:, 0], x[:, 1]], None)
        found = probed(Loop(cell), x)
        assert found["input"].calls == 5
        assert_found(found["input"], rows(cell.weight_ih, data["input_l0"]))
        assert_found(found["hidden"], rows(cell.weight_hh, data["hidden_l0"]))
        assert found["hidden"].zero_pairs == 2 * len(cell.weight_hh)  # the state that was not given


def test_dropout_between_layers_is_repeated_as_it_was():
    layer = nn.LSTM(3, 4, num_layers=2, dropout=0.5).double()
    x = torch.randn(6, 2, 3).double()
    lower, upper = nn.LSTM(3, 4).double(), nn.LSTM(4, 4).double()
    for depth, alone in enumerate((lower, upper)):
        alone.load_state_dict({k: layer.state_dict()[k.replace("l0", f"l{depth}")] for k in alone.state_dict()})
    torch.manual_seed(3)
    dropped = F.dropout(lower(x)[0], 0.5)
    torch.manual_seed(3)
    with pr.AngleProbe(layer) as probe:
        output = layer(x)[0]
    torch.testing.assert_close(output, upper(dropped)[0])  # the mask is the one that torch drew
    found = {record.part: record for record in probe.records}
    assert_found(found["input_l1"], rows(layer.weight_ih_l1, dropped))


def literal_attention(layer, query, key, value, mask=None, dropout=0.0) -> Tensor:
    """What the heads attend to, batch first."""
    weights = layer.in_proj_weight.chunk(3) if layer.in_proj_weight is not None else None
    weights = weights or (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = layer.in_proj_bias.chunk(3)
    product = getattr(layer, "product", "p")
    q, k, v = (
        pr.functional.linear(t, w, b, product=product).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    return (F.dropout(scores.softmax(-1), dropout) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("package", [nn, pr.nn], ids=["native", "converted"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_shows_its_four_projections(package, batch_first):
    layer = package.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=batch_first).double()
    query, key, value = (torch.randn(3, length, size).double() for length, size in ((4, 8), (7, 6), (7, 5)))
    forbidden = torch.rand(4, 7) < 0.3
    attended = literal_attention(layer, query, key, value, forbidden)
    given = [t if batch_first else t.transpose(0, 1) for t in (query, key, value)]
    found = probed(layer, *given, attn_mask=forbidden, need_weights=False)
    assert list(found) == ["q", "k", "v", "out"]
    for part, data in (("q", query), ("k", key), ("v", value)):
        assert_found(found[part], rows(getattr(layer, f"{part}_proj_weight"), data))
    assert_found(found["out"], rows(layer.out_proj.weight, attended))


@pytest.mark.parametrize("product", ["pr", "r"])
def test_self_attention_in_training_is_read_with_its_dropout_and_under_its_product(product):
    layer = pr.nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True, product=product).double()
    x = torch.randn(3, 5, 8).double()
    torch.manual_seed(5)
    attended = literal_attention(layer, x, x, x, dropout=0.4)
    torch.manual_seed(5)
    with pr.AngleProbe(layer) as probe:
        output, _ = layer(x, x, x)
    expected = pr.functional.linear(attended, layer.out_proj.weight, layer.out_proj.bias, product=product)
    torch.testing.assert_close(output, expected)
    found = {record.part: record for record in probe.records}
    assert_found(found["out"], rows(layer.out_proj.weight, attended))
    for part, weight in zip("qkv", layer.in_proj_weight.chunk(3), strict=True):
        assert_found(found[part], rows(weight, x))


@pytest.mark.parametrize("product", ["r", "pr"])
def test_the_output_stands_for_p_only_where_it_is_p(product, monkeypatch):
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    x = torch.randn(5, 6).double()
    for layer in (pr.nn.Linear(6, 4, product=product).double(), Doubled(6, 4).double()):
        assert_found(probed(layer, x)[type(layer).__name__], rows(layer.weight, x))


class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(F.normalize(x - x.mean(-1, keepdim=True)))


class Scaled(Centred):
    def forward(self, x):
        return 2 * super().forward(x**2)


class Last(nn.LSTM):
    def forward(self, x):
        return super().forward(x.flip(0))[0]


def normalised(x: Tensor) -> Tensor:
    return F.normalize(x - x.mean(-1, keepdim=True))


@pytest.mark.parametrize("converted", [False, True])
def test_a_subclass_is_read_where_it_calls_super_forward(converted):
    net = nn.Sequential(Centred(4, 4), Scaled(4, 3), parametrizations.weight_norm(Centred(3, 3)), Last(3, 2)).double()
    net = pr.convert(net) if converted else net
    classes, x = [type(layer) for layer in net], torch.randn(50, 4).double() + 3
    expected = net(x)
    with pr.AngleProbe(net) as probe, pr.AngleProbe(net) as other:
        output = net(x)
        output.sum().backward()
    assert torch.equal(output, expected)
    assert [type(layer) for layer in net] == classes
    assert [(r.layer, r.calls) for r in probe.records] == [("0", 1), ("1", 1), ("2", 1), ("3", 1), ("3", 1)]
    assert (probe.records, probe.skipped) == (other.records, {})
    hidden = net[0](x)
    assert_found(probe.records[0], rows(net[0].weight, normalised(x)))
    assert_found(probe.records[1], rows(net[1].weight, normalised(hidden**2)))
    assert_found(probe.records[2], rows(net[2].weight, normalised(net[1](hidden))))
    assert_found(probe.records[3], rows(net[3].weight_ih_l0, net[2](net[1](hidden)).flip(0)))
    assert probe.records[0].gradient_norm == pytest.approx(net[0].weight.grad.norm().item())
    with pr.AngleProbe(net[0]) as probe:  # the layer itself is the model
        net[0](x)
    assert_found(probe.records[0], rows(net[0].weight, normalised(x)))
    assert type(net[0]) is classes[0]


def test_a_subclass_that_multiplies_by_itself_is_left_out_and_named():
    class Own(nn.Linear):
        def forward(self, x):
            return F.linear(x.abs(), self.weight)

    net = nn.Sequential(nn.Linear(3, 3), Own(3, 3))
    with pr.AngleProbe(net) as probe:
        net(torch.randn(2, 3))
    assert [record.layer for record in probe.records] == ["0"]
    assert probe.skipped == {"1": "Own.forward does not call super().forward"}


def test_a_subclass_has_its_class_back_after_a_forward_that_raised():
    net = nn.Sequential(Centred(4, 4))
    with pr.AngleProbe(net):
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        net(torch.ones(1, 4))
        assert type(net[0]) is Centred
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
    assert type(net[0]) is Centred


def test_where_forward_was_replaced_on_the_instance_the_output_is_not_taken_for_p():
    x, image = torch.randn(5, 4).double(), torch.randn(2, 4, 3, 3).double()
    layer, conv = nn.Linear(4, 3).double(), nn.Conv2d(4, 3, 1).double()
    layer.forward = lambda x: 0.3 * F.linear(x, layer.weight)
    assert_found(probed(nn.Sequential(layer), x)["0"], rows(layer.weight, x))
    conv.forward = lambda x: 3 * F.conv2d(x, conv.weight)
    data = image.flatten(2).transpose(1, 2)[:, None]
    assert_found(probed(nn.Sequential(conv), image)["0"], brute_force(conv.weight.flatten(1)[None], data))


def test_a_plain_layer_is_not_computed_again(monkeypatch):
    def refuse(*_):
        raise AssertionError("computed again")

    layer, x = nn.Linear(6, 4).double(), torch.randn(5, 6).double()
    monkeypatch.setattr("prproduct.kernels.contractions.Linear.native", refuse)
    assert_found(probed(layer, x)["Linear"], rows(layer.weight, x))


def test_zero_vectors_count_as_orthogonal_and_are_counted():
    layer = nn.Linear(3, 4)
    x = torch.randn(5, 3)
    x[:2] = 0
    with torch.no_grad():
        layer.weight[1] = 0
    record = probed(layer, x)["Linear"]
    assert (record.pairs, record.zero_pairs, record.max_sin) == (20, 2 * 4 + 3, 1.0)
    assert_found(record, rows(layer.weight, x), 1e-6)


@pytest.mark.parametrize("scale", [1e-22, 1e-20, 1e-19, 1e-17, 1e-14, 1e-10, 1e15, 1e25])
def test_vectors_too_short_or_too_long_to_square_are_zero_pairs_and_all_others_are_right(scale):
    layer, conv, x = nn.Linear(4, 3, bias=False), nn.Conv2d(4, 3, 1, bias=False), torch.randn(6, 4)
    with torch.no_grad():
        conv.weight.copy_(layer.weight[..., None, None])
    x[:2] *= scale
    expected = rows(layer.weight, x[2:] if not 1e-15 < scale < 1e16 else x)
    image = x.t()[None, :, :, None]
    for record in (probed(layer, x)["Linear"], probed(conv, image)["Conv2d"]):
        assert record.zero_pairs == 18 - expected["pairs"]
        assert (record.min_sin, record.max_cos) == pytest.approx((expected["min_sin"], expected["max_cos"]), abs=1e-5)
        total = expected["mean_sin"] * expected["pairs"] + record.zero_pairs
        assert record.mean_sin == pytest.approx(total / 18, abs=1e-5)


def test_data_that_are_not_finite_spoil_no_other_angle():
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)
    clean = probed(layer, x[2:])["Linear"]
    x[0, 1], x[1, 2] = math.nan, math.inf
    record = probed(layer, x)["Linear"]
    assert (record.min_sin, record.zero_pairs) == (clean.min_sin, 2 * 4)


def test_one_feature_is_always_parallel():
    record = probed(nn.Linear(1, 3, bias=False).double(), torch.randn(8, 1).double())["Linear"]
    assert record.max_sin < 1e-7
    assert (record.max_cos, record.histogram[0]) == (pytest.approx(1.0), 24)


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.Conv2d(3, 4, 1), nn.LSTM(3, 4, batch_first=True)], ids=str)
def test_an_empty_batch_has_no_angles(layer):
    x = torch.empty(0, 3) if isinstance(layer, nn.Linear) else torch.empty(0, 3, 3, 3)
    x = x[:, 0] if isinstance(layer, nn.LSTM) else x
    for record in probed(layer, x).values():
        assert (record.pairs, record.min_sin, record.mean_sin, record.sample_min_sin) == (0, None, None, None)
        assert sum(record.histogram) == 0


def test_a_large_bias_and_a_half_type_do_not_blur_the_angles():
    layer, x = nn.Linear(16, 8), torch.randn(32, 16)
    with torch.no_grad():
        layer.bias.fill_(1e5)
        x[0] = layer.weight[0] * 3 + 0.01 * x[0]
    assert_found(probed(layer, x)["Linear"], rows(layer.weight, x), 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert_found(probed(layer, x)["Linear"], rows(layer.weight, x), 1e-4)
    conv, image = nn.Conv2d(16, 8, 1), x.view(2, 16, 4, 4)
    with torch.no_grad():
        conv.bias.fill_(1e5)
    data = image.flatten(2).transpose(1, 2)[:, None]
    assert_found(probed(conv, image)["Conv2d"], brute_force(conv.weight.flatten(1)[None], data), 1e-4)
    half, x = copy.deepcopy(layer).bfloat16(), x.bfloat16()
    assert_found(probed(half, x)["Linear"], rows(half.weight, x), 1e-4)


# ---- gradients ------------------------------------------------------------------------------------------------------


def parts_of(grad: Tensor, weight: Tensor) -> tuple[float, float]:
    """Norms of the parts along and across each row."""
    along = (grad * weight).sum(1, keepdim=True) / weight.square().sum(1, keepdim=True) * weight
    return along.norm().item(), (grad - along).norm().item()


def test_the_parts_of_a_gradient_lie_along_and_across_each_weight_vector():
    net = nn.Sequential(
        pr.nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(inplace=True), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Flatten()
    ).double()
    net.append(nn.Linear(150, 3).double())
    with pr.AngleProbe(net) as probe:
        net(torch.randn(5, 2, 6, 6).double()).square().sum().backward()
        net[0].weight.grad, kept = None, net[0].weight.grad  # records hold no reference to it
    by_layer = {record.layer: record for record in probe.records}
    rows_of = {
        "0": lambda t: t.flatten(1),
        "2": lambda t: t.unflatten(0, (2, 2)).transpose(1, 2).flatten(0, 1).flatten(1),
        "4": lambda t: t,
    }
    net[0].weight.grad = kept
    for name, as_rows in rows_of.items():
        weight = net[int(name)].weight
        record = by_layer[name]
        length, direction = parts_of(as_rows(weight.grad), as_rows(weight.detach()))
        assert record.length_norm == pytest.approx(length, rel=1e-9)
        assert record.direction_norm == pytest.approx(direction, rel=1e-9)
        assert record.gradient_norm == pytest.approx(weight.grad.norm().item(), rel=1e-9)
        assert record.direction_share == pytest.approx(direction**2 / (length**2 + direction**2), rel=1e-9)


def test_pr_lengthens_the_direction_part_and_leaves_the_length_part():
    x, found = torch.randn(1, 6).double(), {}
    for product in ("p", "pr"):
        torch.manual_seed(1)
        layer = pr.nn.Linear(6, 1, product=product).double()
        with pr.AngleProbe(layer) as probe:
            layer(x).sum().backward()
        (found[product],) = probe.records
    assert found["pr"].length_norm == pytest.approx(found["p"].length_norm, rel=1e-9)
    assert found["pr"].direction_norm == pytest.approx(x.norm().item(), rel=1e-9)
    assert found["p"].direction_norm == pytest.approx(x.norm().item() * found["p"].min_sin, rel=1e-9)


def test_gradients_are_those_of_one_backward_not_of_what_had_accumulated():
    layer, x = nn.Linear(4, 3).double(), torch.randn(5, 4).double()
    with pr.AngleProbe(layer) as probe:
        for _ in range(3):
            layer(x).sum().backward()  # without zero_grad
    norms = [record.gradient_norm for record in probe.records]
    assert norms == [pytest.approx(layer.weight.grad.norm().item() / 3, rel=1e-9)] * 3


def test_parts_of_attention_and_of_a_recurrent_layer_each_have_their_gradient():
    layer = nn.MultiheadAttention(4, 2).double()
    with pr.AngleProbe(layer) as probe:
        x = torch.randn(3, 2, 4).double()
        layer(x, x, x)[0].square().sum().backward()
    blocks = zip(layer.in_proj_weight.grad.chunk(3), layer.in_proj_weight.detach().chunk(3), strict=True)
    expected = [parts_of(*block) for block in blocks] + [parts_of(layer.out_proj.weight.grad, layer.out_proj.weight)]
    assert [(r.length_norm, r.direction_norm) for r in probe.records] == [pytest.approx(e, rel=1e-8) for e in expected]
    lstm = pr.nn.LSTM(3, 4, bidirectional=True).double()
    with pr.AngleProbe(lstm) as probe:
        lstm(torch.randn(5, 2, 3).double())[0].square().sum().backward()
    for record in probe.records:
        weight = getattr(lstm, record.part.replace("input", "weight_ih").replace("hidden", "weight_hh"))
        assert record.gradient_norm == pytest.approx(weight.grad.norm().item(), rel=1e-9)


def test_without_backward_or_for_a_frozen_weight_there_is_no_gradient():
    net = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1))
    with pr.AngleProbe(net) as probe:
        net(torch.ones(1, 3)).sum().backward()
        net(torch.ones(1, 3))
    has = [(record.step, record.layer, record.direction_norm is not None) for record in probe.records]
    assert has == [(0, "0", False), (0, "1", True), (1, "0", False), (1, "1", False)]
    assert probe.records[0].gradient_norm is None
    assert probe.records[0].direction_share is None


def test_a_computed_weight_is_read_once_and_its_gradient_is_summed_over_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = parametrizations.weight_norm(nn.Linear(4, 4).double())

        def forward(self, x):
            return self.layer(self.layer(x))

    net, x = Twice(), torch.randn(5, 4).double()
    with pr.AngleProbe(net) as probe:
        net(x).square().sum().backward()
    (record,) = probe.records
    weight = net.layer.weight.detach().requires_grad_()
    bias = net.layer.bias.detach()
    hidden = F.linear(x, weight, bias)
    F.linear(hidden, weight, bias).square().sum().backward()
    assert (record.calls, record.pairs) == (2, 40)
    assert_found(record, rows(weight.detach(), torch.cat([x, hidden.detach()])))
    assert (record.length_norm, record.direction_norm) == pytest.approx(parts_of(weight.grad, weight), rel=1e-8)


@pytest.mark.parametrize("wrapped", [False, True], ids=["parameter", "computed"])
def test_of_several_backwards_in_a_step_the_last_counts(wrapped):
    layer, x = nn.Linear(4, 3).double(), torch.randn(4, 5, 4).double()
    layer = parametrizations.weight_norm(layer) if wrapped else layer
    weight, bias = layer.weight.detach().requires_grad_(), layer.bias.detach()
    with pr.AngleProbe(layer, forwards_per_step=4) as probe:
        layer(x[0]).square().sum().backward()
        layer(x[1])  # without backward
        loss = layer(x[2]).square().sum() + layer(x[3]).square().sum()
        loss.backward(retain_graph=True)
        (3 * loss).backward()
    (3 * sum(F.linear(data, weight, bias).square().sum() for data in x[2:])).backward()
    (record,) = probe.records
    assert (record.length_norm, record.direction_norm) == pytest.approx(parts_of(weight.grad, weight), rel=1e-8)


def test_computed_weights_that_come_and_go_are_not_taken_for_one_another():
    layer, x = parametrizations.weight_norm(nn.Linear(4, 3).double()), torch.randn(30, 5, 4).double()
    weight, bias = layer.weight.detach().requires_grad_(), layer.bias.detach()
    with pr.AngleProbe(layer, forwards_per_step=len(x)) as probe:
        for data in x:
            layer(data).square().sum().backward()  # and the weight is gone
            expected = torch.autograd.grad(F.linear(data, weight, bias).square().sum(), weight)[0]
            (record,) = probe.records
            assert record.gradient_norm == pytest.approx(expected.norm().item(), rel=1e-8)


# ---- the model does not notice --------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer used twice, dropout, a weight that is computed anew at each look, and a recurrent layer."""

    def __init__(self, package=nn):
        super().__init__()
        self.conv = package.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.shared = parametrizations.spectral_norm(package.Linear(8, 8))
        self.lstm = package.LSTM(8, 6, num_layers=2, dropout=0.3, bidirectional=True)
        self.attention = package.MultiheadAttention(12, 2, dropout=0.2)
        self.head = package.Linear(12, 2)

    def forward(self, x):
        x = F.dropout(F.relu_(self.norm(self.conv(x))), 0.2, self.training).flatten(2).permute(2, 0, 1)
        x = self.shared(F.relu(self.shared(x)))
        x = self.lstm(x)[0]
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(0))


def train(net: nn.Module, call=None, probe: bool = False) -> list[Tensor]:
    """Outputs, gradients, weights, buffers and the next random numbers, after steps in both modes."""
    torch.manual_seed(7)
    call = call or net
    data = torch.randn(4, 2, 3, 5, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    results = []
    watcher = pr.AngleProbe(call, every=2) if probe else None
    for x in data:
        optimizer.zero_grad()
        y = call(x)
        y.square().sum().backward()
        results += [y.detach(), *(p.grad.clone() for p in net.parameters())]
        optimizer.step()
    net.eval()
    results.append(call(data[0]).detach())
    with torch.no_grad():
        results.append(call(data[0]))
    if watcher is not None:
        watcher.close()
        assert {(r.step, r.training) for r in watcher.records} == {(0, True), (2, True), (0, False)}
    return [*results, *net.state_dict().values(), torch.rand(3)]


@pytest.mark.parametrize("package", [nn, pr.nn], ids=["native", "converted"])
def test_outputs_gradients_buffers_and_random_numbers_are_the_same_to_the_bit(package):
    torch.manual_seed(0)
    net = Block(package)
    with_probe, without = train(copy.deepcopy(net), probe=True), train(net)
    for one, other in zip(with_probe, without, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_stays_on_its_fused_path_and_is_read_all_the_same(padded):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(3, 4, 8)
    mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 4]) if padded else None
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        with pr.AngleProbe(encoder) as probe:
            assert torch.equal(encoder(x, src_key_padding_mask=mask), expected)
    parts = ["self_attn/q", "self_attn/k", "self_attn/v", "self_attn/out", "linear1", "linear2"]
    assert [r.name for r in probe.records] == [f"layers.{n}.{part}" for n in range(2) for part in parts]
    assert_found(probe.records[0], rows(encoder.layers[0].self_attn.in_proj_weight[:8], x), 1e-6)


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
    for one, other in zip(with_probe, without, strict=True):
        assert torch.equal(one, other)
    assert [r.layer for r in records] == ["0", "4"]
    assert records[0].min_sin == expected[0].min_sin
    assert all(record.direction_norm is not None for record in records)


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
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
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


def test_arguments_are_copied_only_where_there_is_a_replay(monkeypatch):
    monkeypatch.setattr("prproduct.probe.angle_probe._Before", None)
    with pr.AngleProbe(Block()) as probe:
        probe._model(torch.randn(2, 3, 5, 5))
    assert probe.records


def test_a_part_of_a_model_may_be_compiled():
    net = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager"))
    with pr.AngleProbe(net) as probe, torch.no_grad():
        net(torch.randn(2, 4))
    assert [(r.layer, r.pairs) for r in probe.records] == [("0", 8), ("1.0", 6)]


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


# ---- steps, hooks, sinks --------------------------------------------------------------------------------------------


def count_hooks(net: nn.Module) -> int:
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())
    return hooks + sum(len(p._backward_hooks or {}) for p in net.parameters())


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
    monkeypatch.setattr("prproduct.probe.angle_probe.measure", lambda *arguments: measured.append(1))
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pr.AngleProbe(net, every=5):
        for step in range(11):
            net(torch.ones(1, 3))
            assert len(measured) == 2 * (step // 5 + 1)


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


def test_steps_in_eval_mode_are_counted_apart_and_a_resumed_run_goes_on():
    net = nn.Linear(2, 2)
    with pr.AngleProbe(net, every=2, first_step=4) as probe:
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
        net.eval()
        net(torch.ones(1, 2))
    assert [(r.step, r.training) for r in probe.records] == [(4, True), (6, True), (0, False)]


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


def test_hugging_face_conv1d_has_its_weight_vectors_in_columns():
    layer, x = Conv1D(5, 3).double(), torch.randn(4, 2, 3).double()
    net = nn.Sequential(layer)
    with pr.AngleProbe(net) as probe:
        net(x).square().sum().backward()
    (record,) = probe.records
    assert_found(record, rows(layer.weight.t(), x))
    expected = parts_of(layer.weight.grad.t(), layer.weight.detach().t())
    assert (record.length_norm, record.direction_norm) == pytest.approx(expected, rel=1e-8)


def test_lazy_layers_are_read_once_they_know_their_size():
    net = nn.Sequential(nn.LazyLinear(3))
    with pr.AngleProbe(net) as probe:
        net(torch.randn(4, 5))
    assert probe.records[0].pairs == 12


def test_layers_are_chosen_by_name_or_pattern():
    net = nn.Sequential()
    net.add_module("encoder", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    net.add_module("head", nn.Linear(2, 2))
    assert pr.AngleProbe(net).layers == ["encoder.0", "encoder.1", "head"]
    assert pr.AngleProbe(net, layers=["encoder.*"]).layers == ["encoder.0", "encoder.1"]
    assert pr.AngleProbe(net, layers=["head", "encoder.0"]).layers == ["encoder.0", "head"]


def test_jsonl_holds_the_records_and_is_appended_to(tmp_path):
    path = tmp_path / "angles.jsonl"
    net = nn.Linear(2, 2)
    records = []
    for _ in range(2):
        with pr.AngleProbe(net, jsonl=path) as probe:
            net(torch.randn(3, 2)).sum().backward()
            net(torch.empty(0, 2))
        records += probe.records
    assert pr.probe.read_jsonl(path) == records
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["layer"], first["step"], first["min_sin"]) == ("Linear", 0, records[0].min_sin)
    with path.open("a") as file:
        file.write('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"angles.jsonl, line 5: not a record of an AngleProbe"):
        pr.probe.read_jsonl(path)


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_stops_neither_training_nor_its_writers(factor, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    path, net = tmp_path / "angles.jsonl", nn.Sequential(nn.Linear(4, 3))
    with SummaryWriter(tmp_path) as writer, pr.AngleProbe(net, jsonl=path, writer=writer) as probe:
        for scale in (1.0, factor, 1.0):
            (net(torch.ones(2, 4)).sum() * scale).backward()
    assert [math.isfinite(record.gradient_norm) for record in probe.records] == [True, False, True]
    assert repr(pr.probe.read_jsonl(path)) == repr(probe.records)  # NaN is not equal to itself
    events = EventAccumulator(str(tmp_path)).Reload()
    for scalar in ("length_norm", "gradient_norm", "direction_share", "min_sin"):
        values = [event.value for event in events.Scalars(f"angles/0/{scalar}")]
        assert values == pytest.approx([getattr(record, scalar) for record in probe.records], nan_ok=True)
    assert pr.probe.plot({"P": path}, "gradient_norm").axes


def test_every_number_of_a_record_comes_back_from_its_file(tmp_path):
    odd = (math.nan, math.inf, -math.inf, None, 0.0, 5e-324, 1.7e308)
    angles = dict.fromkeys(("min_sin", "mean_sin", "max_sin", "max_cos", "sample_min_sin"), 0.5)
    records = [
        pr.probe.AngleRecord(1, True, "nan", "inf", "pr", 1, 2, 0, **{**angles, name: number}, histogram=(0, 2))
        for name in angles
        for number in odd
    ]
    records += [
        pr.probe.AngleRecord(
            1, False, "é", "", "p", 1, 2, 0, **angles, histogram=(2,), length_norm=length, direction_norm=direction
        )
        for length in odd
        for direction in odd
    ]
    pr.probe.write_jsonl(records, tmp_path / "records.jsonl")
    found = pr.probe.read_jsonl(tmp_path / "records.jsonl")
    assert repr(found) == repr(records)
    for record in found:
        assert (record.gradient_norm is None) == (record.length_norm is None or record.direction_norm is None)
        assert record.direction_share is None or not record.direction_share > 1

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse)


def test_tensorboard_gets_scalars_and_histograms(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    net = nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 3))
    with SummaryWriter(tmp_path) as writer, pr.AngleProbe(net, every=3, writer=writer) as probe:
        for _ in range(4):
            net(torch.randn(5, 2, 4))[0].sum().backward()
        net.eval()
        net(torch.randn(5, 2, 4))
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    tags = events.Tags()
    assert "angles/1/hidden_l0/direction_share" in tags["scalars"]
    assert "angles/eval/0/min_sin" in tags["scalars"]
    assert "angles/eval/0/direction_share" not in tags["scalars"]
    scalars = events.Scalars("angles/0/sample_min_sin")
    assert [event.step for event in scalars] == [0, 3]
    by_step = [record for record in probe.records if record.layer == "0" and record.training]
    assert [event.value for event in scalars] == pytest.approx([record.sample_min_sin for record in by_step])
    histogram = events.Histograms("angles/0/sin")[0].histogram_value
    assert histogram.num == by_step[0].pairs
    assert (histogram.min, histogram.max) == (by_step[0].min_sin, by_step[0].max_sin)
    assert list(histogram.bucket) == list(by_step[0].histogram)
    assert list(histogram.bucket_limit) == pytest.approx([bin / BINS for bin in range(1, BINS + 1)])


# ---- the figure -----------------------------------------------------------------------------------------------------


def run(product: str) -> list:
    torch.manual_seed(0)
    net = nn.Sequential(pr.nn.LSTM(3, 4, product=product))
    with pr.AngleProbe(net, every=2) as probe:
        for _ in range(6):
            net(torch.randn(5, 2, 3))[0].sum().backward()
        net.eval()
        net(torch.randn(5, 2, 3))
    return probe.records


def test_the_figure_has_a_panel_for_each_product_and_a_line_for_each_run(tmp_path):
    runs = {"P": run("p"), "PR": run("pr")}
    figure = pr.probe.plot(runs, path=tmp_path / "angles.png")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["0/input_l0", "0/hidden_l0"]
    line = panels[1].get_lines()[1]
    assert line.get_label() == "PR"
    hidden = [r for r in runs["PR"] if r.part == "hidden_l0" and r.training]
    assert line.get_xydata().tolist() == [[r.step, r.sample_min_sin] for r in hidden]
    assert (tmp_path / "angles.png").stat().st_size > 10_000
    chosen = pr.probe.plot(runs, "direction_share", names=["0/hidden_l0"])
    assert [axes.get_title() for axes in chosen.axes] == ["0/hidden_l0"]


def test_the_figure_reads_files_and_says_what_is_missing(tmp_path):
    records = run("pr")
    pr.probe.write_jsonl(records, tmp_path / "pr.jsonl")
    assert pr.probe.plot({"PR": tmp_path / "pr.jsonl"}).axes
    with pytest.raises(ValueError, match=r"no statistic is named 'min'; there are min_sin, mean_sin"):
        pr.probe.plot({"PR": records}, "min")
    with pytest.raises(ValueError, match=r"no run has values of sample_min_sin for 7"):
        pr.probe.plot({"PR": records}, names=["7"])
    with pytest.raises(ValueError, match=r"no run has values of sample_min_sin for any layer"):
        pr.probe.plot({})


def test_without_matplotlib_the_figure_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib: pip install 'prproduct\[plot\]'"):
        pr.probe.plot({"PR": []})


# ---- what a user can get wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Sequential(nn.ReLU()), {}, r"nothing to probe in Sequential; it reads Linear, Conv1d"),
        (nn.Linear(2, 2), {"every": 0}, r"every must be a whole number from 1 on, not 0"),
        (nn.Linear(2, 2), {"every": 0.5}, r"every must be a whole number from 1 on, not 0.5"),
        (nn.Linear(2, 2), {"bins": 0}, r"bins must be a whole number from 1 on, not 0"),
        (nn.Linear(2, 2), {"forwards_per_step": 0}, r"forwards_per_step must be"),
        (nn.Linear(2, 2), {"first_step": -1}, r"first_step must be a whole number from 0 on, not -1"),
        (nn.Sequential(nn.Linear(2, 2)), {"layers": ["1"]}, r"no layer to probe is named '1'; there are 0"),
        (nn.Linear(2, 2), {"layers": []}, r"layers is empty; leave it out"),
        (nn.Linear(2, 2), {"writer": object()}, r"writer has no add_scalar\(\)"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(module, options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        pr.AngleProbe(module, **options)
    assert "\n" not in str(caught.value)
    assert count_hooks(module) == 0


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
