"""The paper's networks by name, in plain torch.nn layers: `build("resnet110")`; `pr.convert` gives the PR version."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from prproduct.classification.models import densenet, mlp, preresnet, resnet, vit
from prproduct.lab.errors import InputError

__all__ = ["FAMILIES", "build", "family", "names"]


class Image(NamedTuple):
    """The images that a network is built for."""

    channels: int
    size: int
    classes: int


class Family(NamedTuple):
    """Networks whose names differ only in numbers, such as resnet20 and resnet110."""

    name: str
    form: str  # of their names, for error messages
    pattern: str  # regular expression of their names; its groups are the numbers
    build: Callable[[re.Match[str], Image], nn.Module]


def _mlp(match: re.Match[str], image: Image) -> nn.Module:
    layers, width = int(match["layers"] or 5), int(match["width"] or 256)
    if layers < 1 or width < 1:
        raise InputError(f"{match[0]}: an MLP has at least one layer, of at least one unit")
    return mlp.MLP(image.channels * image.size**2, image.classes, layers, width)


def _resnet(match: re.Match[str], image: Image) -> nn.Module:
    block = resnet.Bottleneck if match["block"] == "bottleneck" else resnet.BasicBlock
    blocks = _per_stage(match, 2, 3 * block.convolutions)
    return resnet.ResNet(block, blocks, image.channels, image.classes)


def _preresnet(match: re.Match[str], image: Image) -> nn.Module:
    block = preresnet.PreBottleneck if match["block"] == "bottleneck" else preresnet.PreBasicBlock
    blocks = _per_stage(match, 2, 3 * block.convolutions)
    return preresnet.PreResNet(block, blocks, image.channels, image.classes)


def _wideresnet(match: re.Match[str], image: Image) -> nn.Module:
    widening = int(match["width"])
    if widening < 1:
        raise InputError(f"{match[0]}: the widening factor is at least 1")
    return preresnet.WideResNet(_per_stage(match, 4, 6), widening, image.channels, image.classes)


def _densenet(match: re.Match[str], image: Image) -> nn.Module:
    growth = int(match["growth"])
    if growth < 1:
        raise InputError(f"{match[0]}: the growth rate is at least 1")
    return densenet.DenseNet(_per_stage(match, 4, 6), growth, image.channels, image.classes)


def _vit(match: re.Match[str], image: Image) -> nn.Module:
    depth, width = int(match["depth"]), int(match["width"])
    if depth < 1 or width < 64 or width % 64:
        raise InputError(f"{match[0]}: a ViT has at least one block, and a width of 64, 128, 192, …")
    if image.size % 4:
        raise InputError(f"{match[0]}: images of {image.size} pixels a side cannot be divided into patches of 4")
    return vit.ViT(image.size, 4, width, depth, width // 64, image.classes, image.channels)


def _per_stage(match: re.Match[str], outside: int, convolutions: int) -> int:
    """Return n, the blocks per stage, of the network's depth = convolutions · n + outside; InputError if there is none.

    `outside` are the layers outside of the three stages, `convolutions` those of one block in each stage.
    """
    depth = int(match["depth"])
    if depth <= outside or (depth - outside) % convolutions:
        examples = ", ".join(str(outside + convolutions * n) for n in (1, 2, 3))
        raise InputError(f"{match[0]}: depth {depth} is not {convolutions}n+{outside} ({examples}, …)")
    return (depth - outside) // convolutions


_BLOCK = r"(?P<depth>\d+)(-(?P<block>basic|bottleneck))?"
FAMILIES = [
    Family("mlp", "mlp[-LAYERS-WIDTH], mlp is mlp-5-256", r"mlp(-(?P<layers>\d+)-(?P<width>\d+))?", _mlp),
    Family("resnet", "resnetDEPTH[-basic|-bottleneck]", "resnet" + _BLOCK, _resnet),
    Family("preresnet", "preresnetDEPTH[-basic|-bottleneck]", "preresnet" + _BLOCK, _preresnet),
    Family("wrn", "wrn-DEPTH-WIDTH", r"wrn-(?P<depth>\d+)-(?P<width>\d+)", _wideresnet),
    Family("densenet-bc", "densenet-bc-DEPTH-GROWTH", r"densenet-bc-(?P<depth>\d+)-(?P<growth>\d+)", _densenet),
    Family("vit", "vit-DEPTH-WIDTH", r"vit-(?P<depth>\d+)-(?P<width>\d+)", _vit),
]


def names() -> str:
    """Return the forms of all names, in one line.

    >>> names()
    'mlp[-LAYERS-WIDTH], mlp is mlp-5-256; resnetDEPTH[-basic|-bottleneck]; preresnetDEPTH[-basic|-bottleneck]; \
wrn-DEPTH-WIDTH; densenet-bc-DEPTH-GROWTH; vit-DEPTH-WIDTH'
    """
    return "; ".join(family.form for family in FAMILIES)


def family(name: str) -> str:
    """Return the family of a network.

    >>> family("resnet110"), family("wrn-28-10")
    ('resnet', 'wrn')
    """
    return _find(name)[0].name


def build(name: str, in_channels: int = 3, classes: int = 10, image_size: int = 32) -> nn.Module:
    """Return the network `name`, initialised from torch's global generator. Only MLPs and ViTs depend on `image_size`.

    >>> sum(p.numel() for p in build("resnet20").parameters())
    272474
    >>> build("resnet21")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: resnet21: depth 21 is not 6n+2 (8, 14, 20, …)
    """
    found, match = _find(name)
    return found.build(match, Image(in_channels, image_size, classes))


def _find(name: str) -> tuple[Family, re.Match[str]]:
    for candidate in FAMILIES:
        if match := re.fullmatch(candidate.pattern, name, flags=re.ASCII):
            return candidate, match
    raise InputError(f"no network is named {name!r}; there are {names()}")
