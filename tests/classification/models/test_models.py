"""The networks are those of the papers: parameters, shapes, depth, initialisation; and all of their layers convert."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import prproduct as pr
from prproduct.classification import models
from prproduct.classification.models import densenet, mlp, preresnet, resnet
from prproduct.lab.errors import InputError

SMALL = [
    "mlp",
    "resnet8",
    "resnet11-bottleneck",
    "preresnet8",
    "preresnet11-bottleneck",
    "wrn-10-1",
    "densenet-bc-10-4",
    "vit-1-64",
]


def weights(model):
    return sum(parameter.numel() for parameter in model.parameters())


def products(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}


def test_parameter_counts_are_those_of_the_papers_as_in_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "classification.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([\d,]+) \| ([\d,]+) \|", page, flags=re.MULTILINE)
    assert len(rows) == 8
    for name, *said in rows:
        with torch.device("meta"):
            assert [f"{weights(models.build(name, 3, classes)):,}" for classes in (10, 100)] == said


def test_the_resnet_of_the_paper_without_projections_has_the_count_of_he_et_al():
    with torch.device("meta"):
        net = models.build("resnet110")
    assert weights(net) - weights(net.stage2[0].shortcut) - weights(net.stage3[0].shortcut) == 1_727_962


def test_a_network_says_its_depth_in_its_name():
    """Convolutions and classifier, shortcuts not counted."""
    for name, depth in {
        "mlp": 5,
        "mlp-3-7": 3,
        "resnet110": 110,
        "resnet110-basic": 110,
        "resnet110-bottleneck": 110,
        "preresnet110": 110,
        "preresnet110-bottleneck": 110,
        "wrn-28-10": 26,  # the name counts the three shortcuts, and not the classifier
        "densenet-bc-100-12": 100,
    }.items():
        with torch.device("meta"):
            assert len([n for n in products(models.build(name)) if "shortcut" not in n]) == depth, name


def test_basic_and_bottleneck_are_different_networks_of_the_same_depth():
    with torch.device("meta"):
        basic, bottleneck = (models.build(name) for name in ("resnet110", "resnet110-bottleneck"))
    assert type(basic.stage1[0]) is resnet.BasicBlock
    assert type(bottleneck.stage1[0]) is resnet.Bottleneck
    assert weights(basic) == 1_730_714
    assert weights(bottleneck) < weights(basic)


SHAPES = {
    "resnet20": {"conv1": (16, 32, 32), "stage1": (16, 32, 32), "stage2": (32, 16, 16), "stage3": (64, 8, 8)},
    "resnet11-bottleneck": {
        "conv1": (16, 32, 32),
        "stage1": (64, 32, 32),
        "stage2": (128, 16, 16),
        "stage3": (256, 8, 8),
    },
    "preresnet20": {"conv1": (16, 32, 32), "stage1": (16, 32, 32), "stage2": (32, 16, 16), "stage3": (64, 8, 8)},
    "preresnet11-bottleneck": {"conv1": (16, 32, 32), "stage1": (64, 32, 32), "stage3": (256, 8, 8)},
    "wrn-10-2": {"conv1": (16, 32, 32), "stage1": (32, 32, 32), "stage2": (64, 16, 16), "stage3": (128, 8, 8)},
    "densenet-bc-100-12": {
        "conv1": (24, 32, 32),
        "stage1": (216, 32, 32),
        "transition1": (108, 16, 16),
        "stage2": (300, 16, 16),
        "transition2": (150, 8, 8),
        "stage3": (342, 8, 8),
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_stage_has_the_shape_of_the_paper(name):
    seen = {}
    net = models.build(name)

    def note(name):
        def hook(_module, _inputs, output):
            seen[name] = tuple(output.shape[1:])

        return hook

    for child, module in net.named_children():
        module.register_forward_hook(note(child))
    with torch.no_grad():
        assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert {stage: seen[stage] for stage in SHAPES[name]} == SHAPES[name]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (1, 8), (3, 32)])
def test_every_network_takes_every_data_set(name, channels, size):
    net = models.build(name, channels, 7, size)
    assert net(torch.randn(2, channels, size, size)).shape == (2, 7)


@pytest.mark.parametrize(
    "name", [name for name in SMALL if not name.startswith(("wrn", "vit"))] + ["densenet-bc-22-12"]
)
def test_weights_start_from_kaiming_normal_fan_in(name):
    torch.manual_seed(3)
    for layer in products(models.build(name)).values():
        expected = math.sqrt(2 / layer.weight[0].numel())
        assert abs(layer.weight.std().item() / expected - 1) < 4 / math.sqrt(layer.weight.numel())
        assert abs(layer.weight.mean().item()) < 4 * expected / math.sqrt(layer.weight.numel())
        assert layer.bias is None or not layer.bias.any()


def test_wrn_starts_from_normal_fan_out():
    torch.manual_seed(3)
    net = models.build("wrn-10-4")
    for layer in products(net).values():
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
            assert abs(layer.weight.std().item() / expected - 1) < 4 / math.sqrt(layer.weight.numel())
    assert not net.fc.bias.any()
    assert net.fc.weight.abs().max() <= 1 / math.sqrt(256)


def test_wrn_drops_0_3_between_the_convolutions_and_only_in_training():
    net = models.build("wrn-10-1")
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.3] * 3
    images = torch.randn(4, 3, 32, 32)
    net.eval()
    assert torch.equal(net(images), net(images))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(net(images), net(images))
    assert preresnet.WideResNet(1, 1, 3, 10, dropout=0.0).stage1[0].dropout.p == 0


def test_the_same_seed_gives_the_same_weights():
    for name in SMALL:
        states = []
        for _ in range(2):
            torch.manual_seed(5)
            states.append(models.build(name).state_dict())
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", SMALL)
def test_every_convolution_and_the_classifier_convert(name):
    torch.manual_seed(0)
    net = models.build(name).double().eval()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    native = net(images)
    native.square().sum().backward()
    gradients = {key: parameter.grad.clone() for key, parameter in net.named_parameters()}
    net.zero_grad()
    pr.convert(net)
    assert all(layer.product.name == "pr" for layer in products(net).values())
    converted = net(images)
    assert torch.equal(converted, native)
    converted.square().sum().backward()
    for key in products(net):
        assert not torch.allclose(net.get_parameter(f"{key}.weight").grad, gradients[f"{key}.weight"], rtol=1e-3), key


def test_the_residual_block_adds_its_input_before_the_last_relu():
    """With its last BatchNorm at zero, a block is the ReLU of its shortcut; pre-activated, the shortcut itself."""
    x = torch.randn(2, 16, 8, 8)
    block = resnet.BasicBlock(16, 16, stride=1)
    nn.init.zeros_(block.bn2.weight)
    assert torch.equal(block(x), x.relu())
    wide = preresnet.WideBlock(16, 16, 1, dropout=0.0)
    dense = densenet.DenseLayer(16, 4)
    for layer in (preresnet.PreBasicBlock(16, 16, stride=1), wide):
        nn.init.zeros_(layer.conv2.weight)
        assert torch.equal(layer(x), x)
    assert torch.equal(dense(x)[:, :16], x)


def test_shortcuts_of_a_new_shape_see_what_the_papers_say():
    x = torch.randn(2, 16, 8, 8)
    pre, wide = preresnet.PreBasicBlock(16, 32, stride=2), preresnet.WideBlock(16, 32, 2, dropout=0.0)
    for block in (pre, wide):
        nn.init.zeros_(block.conv2.weight)
    assert torch.equal(pre(x), pre.shortcut(x))
    assert torch.equal(wide(x), wide.shortcut(wide.bn1(x).relu()))


def test_an_mlp_of_one_layer_is_a_linear_layer():
    assert [type(m) for m in mlp.MLP(12, 3, layers=1)] == [nn.Flatten, nn.Linear]


@pytest.mark.parametrize(
    "name", ["vgg16", "", "ResNet20", "resnet", "resnet-20", "wrn-28", "resnet20-wide", "resnet２０"]
)
def test_an_unknown_name_lists_what_there_is(name):
    with pytest.raises(InputError, match=r"mlp.*resnet.*preresnet.*wrn.*densenet-bc"):
        models.build(name)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("resnet21", r"resnet21: depth 21 is not 6n\+2 \(8, 14, 20, …\)"),
        ("resnet2", r"resnet2: depth 2 is not 6n\+2"),
        ("resnet0", r"resnet0: depth 0 is not 6n\+2"),
        ("resnet21-bottleneck", r"depth 21 is not 9n\+2 \(11, 20, 29"),
        ("wrn-27-10", r"depth 27 is not 6n\+4 \(10, 16, 22"),
        ("wrn-28-0", "widening factor is at least 1"),
        ("densenet-bc-99-12", r"depth 99 is not 6n\+4"),
        ("densenet-bc-100-0", "growth rate is at least 1"),
        ("vit-0-64", "at least one block"),
        ("vit-2-100", "a width of 64, 128, 192"),
        ("mlp-0-256", "at least one layer"),
        ("mlp-5-0", "at least one unit"),
    ],
)
def test_impossible_numbers_are_one_line(name, line):
    with pytest.raises(InputError, match=line):
        models.build(name)


def test_a_vit_refuses_images_that_its_patches_do_not_cover():
    with pytest.raises(InputError, match="images of 30 pixels a side cannot be divided into patches of 4"):
        models.build("vit-1-64", image_size=30)
