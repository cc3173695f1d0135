"""Training recipes: optimizer, epochs, batch size and learning rates of each network, from the PR paper's code.

SGD with momentum 0.9 (without Nesterov) at learning rate 0.1, multiplied by a factor at milestones, and a tenth of it
in the first epoch. The learning rate is a pure function of the epoch, so that a resumed run needs no scheduler state;
MultiStepLR, besides, would go on from the first epoch's reduced rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prproduct.classification import models
from prproduct.classification.data.sources import source
from prproduct.lab.checks import check_known, check_least, check_positive
from prproduct.lab.errors import InputError

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Recipe:
    """The settings of a training, without the network, the data, the product and the seed."""

    epochs: int
    batch_size: int
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()  # epochs, counted from 0, at which the rate is multiplied by `decay`
    decay: float = 0.1
    first_epoch: float = 1.0  # factor of the rate of epoch 0
    augment: bool = False

    def __post_init__(self) -> None:
        check_known("optimizer", self.optimizer, OPTIMIZERS)
        for name, least in (("epochs", 1), ("batch_size", 1), ("momentum", 0), ("weight_decay", 0)):
            check_least(name, getattr(self, name), least)
        for name in ("learning_rate", "decay", "first_epoch"):
            check_positive(name, getattr(self, name))
        if list(self.milestones) != sorted(self.milestones) or any(epoch < 1 for epoch in self.milestones):
            raise InputError(f"milestones are {self.milestones}, they must ascend from 1 or later")

    def scaled(self, epochs: int) -> Recipe:
        """Return the recipe for another number of epochs, with milestones at the same fractions, to the nearest epoch.

        >>> recipe("resnet110", "cifar10").scaled(8).milestones
        (4, 6)
        """
        nearest = (math.floor(epoch * epochs / self.epochs + 0.5) for epoch in self.milestones)
        return replace(self, epochs=epochs, milestones=tuple(max(1, epoch) for epoch in nearest))


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 0.

    >>> [round(learning_rate(recipe("resnet110", "cifar10"), epoch), 6) for epoch in (0, 1, 80, 81, 121, 122, 163)]
    [0.01, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """
    passed = sum(milestone <= epoch for milestone in recipe.milestones)
    return recipe.learning_rate * recipe.decay**passed * (recipe.first_epoch if epoch == 0 else 1.0)


# The paper states none of these numbers; they are those of its author's code (docs/classification.md).
_RESIDUAL = Recipe(epochs=164, batch_size=128, weight_decay=1e-4, milestones=(81, 122), first_epoch=0.1)
PAPER = {
    "resnet": _RESIDUAL,
    "preresnet": _RESIDUAL,
    "wrn": Recipe(epochs=200, batch_size=128, weight_decay=5e-4, milestones=(60, 120, 160), decay=0.2, first_epoch=0.1),
    "densenet-bc": Recipe(epochs=300, batch_size=64, weight_decay=1e-4, milestones=(150, 225), first_epoch=0.1),
}
# The paper has no transformer; this is our choice.
VIT = Recipe(epochs=100, batch_size=128, optimizer="adam", learning_rate=1e-3, milestones=(50, 75), first_epoch=0.1)
# The paper states nothing about the fully connected network; these are our choice.
MLP = {
    "digits": Recipe(epochs=30, batch_size=32, learning_rate=0.02),
    "fashion-mnist": Recipe(epochs=10, batch_size=128, learning_rate=0.01),
}


def recipe(arch: str, data: str) -> Recipe:
    """Return the default recipe of a network on a data set. Only CIFAR's images are augmented, and not for an MLP.

    >>> recipe("wrn-28-10", "cifar100").weight_decay
    0.0005
    """
    family = models.family(arch)
    source(data)
    if family == "mlp":
        return MLP.get(data, MLP["fashion-mnist"])
    return replace(VIT if family == "vit" else PAPER[family], augment=data.startswith("cifar"))
