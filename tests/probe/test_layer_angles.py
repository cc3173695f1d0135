"""Linear and convolutional layers: every data vector is paired with every weight vector of its group, once."""

import pytest
import torch
import torch.nn.functional as F
from expected_angles import assert_found, brute_force, parts_of, probed, rows
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import prproduct as pr
from prproduct.probe import angles


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
    kernels = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    record = probed(nn.Sequential(layer), x)["0"]
    assert_found(record, brute_force(kernels, data))
    assert record.zero_pairs > 0
    alone = probed(layer, x[2])["Conv2d"]  # unbatched
    assert_found(alone, brute_force(kernels, data[2:3]))


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
