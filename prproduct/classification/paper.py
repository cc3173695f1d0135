"""The numbers that the paper reports on image classification (ICCV 2019, Table 1 and §1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row of Table 1: test errors in percent, one number each; the paper states neither seeds nor deviations.

    >>> round(TABLE_1[0].difference, 2)
    -0.26
    """

    network: str  # its name in the paper
    arch: str  # its name in `models`
    data: str
    p: float
    pr: float

    @property
    def difference(self) -> float:
        """The error under PR minus the error under P."""
        return self.pr - self.p


TABLE_1 = (
    Row("ResNet110", "resnet110", "cifar10", 6.23, 5.97),
    Row("PreResNet110", "preresnet110", "cifar10", 5.99, 5.64),
    Row("WRN-28-10", "wrn-28-10", "cifar10", 4.34, 4.03),
    Row("DenseNet-BC-100-12", "densenet-bc-100-12", "cifar10", 4.63, 4.46),
    Row("ResNet110", "resnet110", "cifar100", 28.08, 27.88),
    Row("PreResNet110", "preresnet110", "cifar100", 27.08, 26.82),
    Row("WRN-28-10", "wrn-28-10", "cifar100", 19.50, 19.57),
    Row("DenseNet-BC-100-12", "densenet-bc-100-12", "cifar100", 22.88, 22.64),
)
# The averages over the four networks that its text states.
AVERAGES = {"cifar10": -0.27, "cifar100": -0.16}
# §1: top-1 accuracy in percent of a 5-layer fully connected network on Fashion-MNIST. It does not say whether the
# third variant removes the direction part of ∂/∂x as well, so its number stands for both of our variants.
GRADIENT_STUDY = {"p": 88.42, "no-length": 88.32, "no-direction": 38.59, "no-direction-w": 38.59}
