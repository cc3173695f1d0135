"""The rows of the table: layers and nets, and their targets.

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
from prproduct.bench.timing import Step
from prproduct.classification import models
from prproduct.classification.models.vit import ViT
from prproduct.lab.errors import InputError


def output_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of a module; of a recurrent layer without the last state."""
    output = module(inputs)
    return output[0] if isinstance(output, tuple) else output


def loss_of(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over pictures, or over tokens."""
    logits = net(inputs)  # (batch, classes) or (batch, length, vocabulary)
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


@dataclass(frozen=True)
class LayerStep:
    """Forward and backward of a layer, with gradients of its parameters and of its input, as inside a net."""

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
    """Forward, loss and backward of a net, and a step of SGD with momentum."""

    net: nn.Module
    inputs: Tensor
    labels: Tensor
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        # A small rate leaves the weights nearly as they are: the hundredth step costs what the first does.
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
    """A layer or a net of torch's own layers, the shape of its batch, and its targets."""

    group: str
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the batch
    target: float | None = None  # of the time
    autocast_target: float | None = None  # of the time under autocast
    classes: int = 0  # of a net, which is measured with a step of its optimizer; 0 for a layer
    vocabulary: int = 0  # of a batch of tokens; 0 for pictures and vectors
    size: int | None = None  # the value of what a sweep varies

    def batch(self, dtype: torch.dtype) -> Tensor:
        """Return random pictures, vectors or tokens; the batch of a layer requires a gradient."""
        if self.vocabulary:
            return torch.randint(self.vocabulary, self.shape)
        return torch.randn(self.shape, dtype=dtype, requires_grad=not self.classes)

    def labels(self) -> Tensor:
        """Return random labels, one for each token or picture."""
        return torch.randint(self.classes, self.shape if self.vocabulary else self.shape[:1])

    def steps(self, modules: dict[str, nn.Module], batch: Tensor) -> dict[str, Step]:
        """Return the step of each module, all with the same batch, labels and output gradient."""
        if self.classes:
            labels = self.labels()
            return {name: NetStep(module, batch, labels) for name, module in modules.items()}
        with torch.no_grad():
            grad = torch.randn_like(output_of(next(iter(modules.values())), batch))
        return {name: LayerStep(module, batch, grad) for name, module in modules.items()}

    def forward(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the forward whose saved bytes are counted.

        A net includes its loss. A convolution is followed by BatchNorm and ReLU, since its output, which ours saves, is
        saved by the BatchNorm as well.
        """
        if self.classes:
            labels = self.labels()
            return lambda batch: loss_of(module, batch, labels)
        if isinstance(module, nn.Conv2d):
            norm = nn.BatchNorm2d(module.out_channels, dtype=module.weight.dtype)
            return nn.Sequential(module, norm, nn.ReLU(inplace=True))
        return lambda batch: output_of(module, batch)

    def time_target(self, compile: bool = False, autocast: bool = False) -> float | None:
        """Return the target of the ratio in float32: eager, compiled (of nets only), or under autocast."""
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
    """Return the case of a linear layer with bias; input of shape (rows, inputs)."""
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
    """Return the case of a convolution without bias, as before a BatchNorm; input of `side` × `side` pixels."""
    kind = f"{'depthwise ' if groups > 1 else ''}{kernel}×{kernel}{f' stride {stride}' if stride > 1 else ''}"
    name = f"Conv2d {kind} {channels[0]}→{channels[1]} at {side}², batch {batch}"
    build = partial(nn.Conv2d, *channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return Case("conv", name, build, (batch, channels[0], side, side), target, autocast, size=size)


def recurrent(kind: Callable[..., nn.Module], steps: int, batch: int, size: int, target: float) -> Case:
    """Return the case of a recurrent layer; input of shape (steps, batch, size), and as many units as features."""
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
    """Return the case of a classifier of pictures of 32×32 pixels with 10 classes."""
    return Case(group, f"{name}, batch {batch}", build, (batch, 3, 32, 32), target, autocast, classes=10)


CASES: list[Case] = [
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
]

SWEEPS: dict[str, tuple[str, list[Case]]] = {  # by the name for --sweep: what is varied, and the cases
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


def chosen(only: Sequence[str]) -> list[Case]:
    """Return the cases whose group is, or whose name contains, one of the words of `only`; all cases if it is empty.

    >>> [case.name for case in chosen(["gru", "→512"])]
    ['Linear 128×512→512', 'LSTM 17×64×512→512', 'GRU 20×32×128→128']
    """
    for word in only:
        if not _matching(word):
            groups = ", ".join(dict.fromkeys(case.group for case in CASES))
            raise InputError(f"--only {word}: no case is called so; give a part of a name, or a group: {groups}")
    wanted = [case for word in only for case in _matching(word)] if only else CASES
    return [case for case in CASES if case in wanted]


def _matching(word: str) -> list[Case]:
    part = word.lower().replace("×", "x")  # x for ×, which keyboards lack
    return [case for case in CASES if case.group == word.lower() or part in case.name.lower().replace("×", "x")]


def swept(kind: str) -> tuple[str, list[Case]]:
    """Return what a sweep varies, in words, and its cases; InputError for an unknown one."""
    if kind not in SWEEPS:
        raise InputError(f"--sweep {kind}: unknown; there are {', '.join(SWEEPS)}")
    return SWEEPS[kind]
