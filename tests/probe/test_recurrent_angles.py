"""Recurrent layers and cells: the products of input, hidden state and projection, at every step of every sequence."""

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, probed, rows
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import prproduct as pr


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
