"""The table of what is measured: layers, nets, the caption reward, and their targets.

Targets are ratios to the native layer or net, for `pr` in float32 on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prproduct.bench.networks import GPT, InPlaceNet
from prproduct.bench.reward import RewardCase
from prproduct.bench.timing import Step
from prproduct.classification import models
from prproduct.classification.models.vit import ViT
from prproduct.lab.errors import InputError


def output_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """The output, of a recurrent layer without its last state."""
    output = module(inputs)
    return output[0] if isinstance(output, tuple) else output


def loss_of(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, of pictures or of every token."""
    logits = net(inputs)  # (batch, classes) or (batch, length, vocabulary)
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


@dataclass(frozen=True)
class LayerStep:
    """Forward and backward, as inside a net: the gradients of the parameters and of the input are wanted."""

    layer: nn.Module
    inputs: Tensor
    grad: Tensor

    def prepare(self) -> None:
        self.layer.zero_grad()
        self.inputs.grad = None

    def __call__(self) -> None:
        output_of(self.layer, self.inputs).backward(self.grad)


@dataclass(frozen=True)
class NetStep:
    """Forward, loss, backward and a step of SGD with momentum."""

    net: nn.Module
    inputs: Tensor
    labels: Tensor
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        # The rate is too small to change the weights much: the hundredth step costs what the first does.
        optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-6, momentum=0.9)
        object.__setattr__(self, "optimizer", optimizer)

    def prepare(self) -> None:
        self.optimizer.zero_grad()

    def __call__(self) -> None:
        loss_of(self.net, self.inputs, self.labels).backward()
        self.optimizer.step()


COMPILED_NET_TARGET = 1.12  # torch.compile on both sides
AUTOCAST_TARGET = 1.25


@dataclass(frozen=True)
class Case:
    """Something to measure, built of torch's own layers, and the batch for it."""

    group: str
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the batch
    target: float | None = None  # of the time
    autocast_target: float | None = None  # of the time under autocast
    classes: int = 0  # of a net, which is measured with a step of its optimizer; 0 for a layer
    vocabulary: int = 0  # where the batch is of tokens
    size: int | None = None  # what a sweep varies

    def batch(self, dtype: torch.dtype) -> Tensor:
        """Random pictures, vectors or tokens; a layer's want a gradient."""
        if self.vocabulary:
            return torch.randint(self.vocabulary, self.shape)
        return torch.randn(self.shape, dtype=dtype, requires_grad=not self.classes)

    def labels(self) -> Tensor:
        """Random labels, of every token or of every picture."""
        return torch.randint(self.classes, self.shape if self.vocabulary else self.shape[:1])

    def steps(self, modules: dict[str, nn.Module], batch: Tensor) -> dict[str, Step]:
        """What each of the modules does in a turn; all get the same batch, labels and gradients."""
        if self.classes:
            labels = self.labels()
            return {name: NetStep(module, batch, labels) for name, module in modules.items()}
        with torch.no_grad():
            grad = torch.randn_like(output_of(next(iter(modules.values())), batch))
        return {name: LayerStep(module, batch, grad) for name, module in modules.items()}

    def forward(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """The forward whose memory counts: of a net with its loss, of a convolution inside Conv–BatchNorm–ReLU."""
        if self.classes:
            labels = self.labels()
            return lambda batch: loss_of(module, batch, labels)
        if isinstance(module, nn.Conv2d):
            norm = nn.BatchNorm2d(module.out_channels, dtype=module.weight.dtype)
            return nn.Sequential(module, norm, nn.ReLU(inplace=True))
        return lambda batch: output_of(module, batch)

    def time_target(self, compile: bool = False, autocast: bool = False) -> float | None:
        """The target in float32: eager, with torch.compile on both sides (nets only), or under autocast."""
        if compile:
            return COMPILED_NET_TARGET if self.classes and not autocast else None
        return self.autocast_target if autocast else self.target


def linear(
    rows: int,
    inputs: int,
    outputs: int,
    target: float | None = 1.10,
    autocast: float | None = None,
    size: int | None = None,
) -> Case:
    """A linear layer."""
    name = f"Linear {rows}×{inputs}→{outputs}"
    return Case("linear", name, partial(nn.Linear, inputs, outputs), (rows, inputs), target, autocast, size=size)


def conv(
    channels: tuple[int, int],
    side: int,
    batch: int,
    target: float | None,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    autocast: float | None = None,
    size: int | None = None,
) -> Case:
    """A convolution without bias, as in front of a BatchNorm."""
    kind = f"{'depthwise ' if groups > 1 else ''}{kernel}×{kernel}{f' stride {stride}' if stride > 1 else ''}"
    name = f"Conv2d {kind} {channels[0]}→{channels[1]} at {side}², batch {batch}"
    build = partial(nn.Conv2d, *channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return Case("conv", name, build, (batch, channels[0], side, side), target, autocast, size=size)


def recurrent(kind: Callable[..., nn.Module], steps: int, batch: int, size: int, target: float) -> Case:
    """A recurrent layer with as many inputs as units."""
    name = f"{kind.__name__} {steps}×{batch}×{size}→{size}"
    return Case("recurrent", name, partial(kind, size, size), (steps, batch, size), target)


def net(
    group: str,
    name: str,
    build: Callable[[], nn.Module],
    batch: int,
    target: float | None,
    autocast: float | None = None,
) -> Case:
    """A net for pictures of 32×32."""
    return Case(group, f"{name}, batch {batch}", build, (batch, 3, 32, 32), target, autocast, classes=10)


CASES: list[Case | RewardCase] = [
    linear(128, 784, 256),
    linear(128, 512, 512),
    linear(2048, 512, 2048, autocast=AUTOCAST_TARGET),
    linear(640, 512, 9487),
    conv((16, 16), 32, 128, 1.12),
    conv((32, 32), 16, 128, 1.12),
    conv((64, 64), 8, 128, 1.12, autocast=AUTOCAST_TARGET),
    conv((160, 160), 32, 8, 1.12),
    conv((96, 48), 32, 64, 1.20, kernel=1),
    conv((64, 64), 32, 64, 1.35, groups=64),
    conv((16, 32), 32, 128, 1.20, stride=2),
    recurrent(nn.LSTM, 17, 64, 512, 1.20),
    recurrent(nn.LSTM, 20, 32, 128, 1.35),
    recurrent(nn.GRU, 20, 32, 128, 1.0),
    net("nets", "ResNet-110", partial(models.build, "resnet110"), 128, 1.15),
    net("nets", "PreResNet-110", partial(models.build, "preresnet110"), 128, 1.15),
    net("nets", "DenseNet-BC-100-12", partial(models.build, "densenet-bc-100-12"), 64, 1.12),
    net("nets", "WRN-28-10", partial(models.build, "wrn-28-10"), 8, 1.08),
    net("transformers", "ViT-S of 4×4 patches", ViT, 16, 1.08, AUTOCAST_TARGET),
    Case("transformers", "GPT-2 of 6 layers, 2×256 tokens", GPT, (2, 256), 1.08, classes=50257, vocabulary=50257),
    net("inplace", "residuals added in place", InPlaceNet, 32, None),
    RewardCase(),
]

SWEEPS: dict[str, tuple[str, list[Case]]] = {
    "channels": (
        "channels of a 3×3 convolution at 16², batch 64",
        [conv((n, n), 16, 64, None, size=n) for n in (4, 8, 16, 32, 64, 128, 256)],
    ),
    "batch": (
        "batch of a 3×3 convolution 32→32 at 16²",
        [conv((32, 32), 16, n, None, size=n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)],
    ),
    "features": (
        "features of a linear layer 128×n→n",
        [linear(128, n, n, target=None, size=n) for n in (32, 64, 128, 256, 512, 1024, 2048, 4096)],
    ),
}


def chosen(only: Sequence[str]) -> list[Case | RewardCase]:
    """The cases whose group or name contains one of the given words; all, if none is given.

    >>> [case.name for case in chosen(["gru", "→512"])]
    ['Linear 128×512→512', 'LSTM 17×64×512→512', 'GRU 20×32×128→128']
    """
    for word in only:
        if not _matching(word):
            groups = ", ".join(dict.fromkeys(case.group for case in CASES))
            raise InputError(f"--only {word}: no case is called so; give a part of a name, or a group: {groups}")
    wanted = [case for word in only for case in _matching(word)] if only else CASES
    return [case for case in CASES if case in wanted]


def _matching(word: str) -> list[Case | RewardCase]:
    plain = word.lower().replace("x", "×")  # who types × on a keyboard?
    return [case for case in CASES if case.group == word.lower() or plain in case.name.lower().replace("x", "×")]


def swept(kind: str) -> tuple[str, list[Case]]:
    """What a sweep varies, and its cases."""
    if kind not in SWEEPS:
        raise InputError(f"--sweep {kind}: unknown; there are {', '.join(SWEEPS)}")
    return SWEEPS[kind]
