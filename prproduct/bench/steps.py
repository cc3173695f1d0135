"""One step of a contender: of a layer forward and backward, of a net a whole step of its optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
