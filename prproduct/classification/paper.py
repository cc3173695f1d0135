"""What the paper reports on image classification, as data (ICCV 2019, its Table 1, §1 and appendix A)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A network of Table 1: test errors in percent, one number each; the paper gives neither seeds nor deviations.

    >>> round(TABLE_1[0].difference, 2)
    -0.26
    """

    network: str  # as the paper calls it
    arch: str  # as we do
    data: str
    p: float
    pr: float

    @property
    def difference(self) -> float:
        """PR minus P."""
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
# Its averages over the four networks, as its text states them.
AVERAGES = {"cifar10": -0.27, "cifar100": -0.16}
# §1: top-1 accuracy in percent of a 5-layer fully connected network on Fashion-MNIST. The third is given without saying
# whether ∂/∂x lost its direction part as well, so that both of ours stand beside it.
GRADIENT_STUDY = {"p": 88.42, "no-length": 88.32, "no-direction": 38.59, "no-direction-w": 38.59}
