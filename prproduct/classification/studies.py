"""The paper's two studies of classifiers as lists of runs, at three scales.

`gradients` is that of the paper's introduction: what does each part of the gradient do? `cifar` is its Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from prproduct.classification.data.locate import find
from prproduct.classification.data.sources import SOURCES, source
from prproduct.classification.training import ClassifierConfig
from prproduct.lab.errors import InputError

SCALES = ("quick", "small", "paper")


@dataclass(frozen=True)
class Part:
    """A network of a study: on which data, under which products, with how many seeds; what is None is the recipe's."""

    arch: str
    data: tuple[str, ...]
    products: tuple[str, ...]
    seeds: int
    epochs: int | None = None
    angles: int = 0  # steps between two records of the angles


_FIVE = ("p", "no-length", "no-direction", "r", "pr")
_BOTH = ("p", "pr")
_MLP = Part("mlp", ("fashion-mnist",), _FIVE, seeds=5, angles=100)
_PAPER_NETS = ("resnet110", "preresnet110", "wrn-28-10", "densenet-bc-100-12")
STUDIES: dict[str, dict[str, tuple[Part, ...]]] = {
    "gradients": {
        "quick": (replace(_MLP, seeds=2, epochs=2),),
        "small": (_MLP,),
        "paper": (replace(_MLP, seeds=10),),  # the paper tells neither epochs nor seeds: more of the same
    },
    "cifar": {
        "quick": (Part("resnet8", ("cifar10",), _BOTH, seeds=1, epochs=1, angles=88),),
        "small": (
            Part("resnet8", ("cifar10",), _BOTH, seeds=3, epochs=8, angles=88),
            Part("densenet-bc-16-12", ("cifar10",), _BOTH, seeds=1, epochs=2, angles=88),
        ),
        "paper": tuple(Part(net, ("cifar10", "cifar100"), _BOTH, seeds=3, angles=500) for net in _PAPER_NETS),
    },
}
# Where Fashion-MNIST is not at hand, nobody who wants a quick look waits for a download; an epoch there has 41 steps.
_WITHOUT_DOWNLOAD = replace(_MLP, data=("digits",), seeds=2, angles=10)


def _is(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Choice:
    """Which runs of a study: its scale, and what is to be other than the scale says.

    >>> Choice(scale="huge")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: scale 'huge' is not known; there are quick, small, paper
    """

    scale: str = _is("quick", ", ".join(SCALES))
    seeds: int | None = _is(None, "how many: 0, 1, …; the same for all products")
    arch: tuple[str, ...] | None = _is(None, "another network; may be given often")
    data: tuple[str, ...] | None = _is(None, f"another data set ({', '.join(SOURCES)}); may be given often")
    product: tuple[str, ...] | None = _is(None, "another product; may be given often")
    epochs: int | None = _is(None, "of training; the recipe's milestones move with them")
    batch_size: int | None = _is(None, "images of a step")
    optimizer: str | None = _is(None, "sgd or adam")
    learning_rate: float | None = _is(None, "before the milestones")
    protocol: str = _is("validation", "validation holds out a tenth to choose an epoch by; paper trains on all")
    angles: int | None = _is(None, "record the angles every so many steps; 0: never")

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InputError(f"scale {self.scale!r} is not known; there are {', '.join(SCALES)}")
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}, it must be at least 1")
        for name in ("arch", "data", "product"):
            given = getattr(self, name) or ()
            if len(set(given)) < len(given):
                raise InputError(f"{name} is given twice: {', '.join(given)}")


def parts(study: str, choice: Choice, data_dir: Path | None = None) -> list[Part]:
    """The networks of a study, with what was chosen; another network takes its scale's first one's settings.

    >>> [(part.arch, part.seeds, part.epochs) for part in parts("cifar", Choice(scale="small"))]
    [('resnet8', 3, 8), ('densenet-bc-16-12', 1, 2)]
    """
    own = STUDIES[study][choice.scale]
    if (study, choice.scale) == ("gradients", "quick"):
        wanted = choice.data or own[0].data
        if wanted == ("digits",) or (not choice.data and find(source("fashion-mnist"), data_dir) is None):
            own = (_WITHOUT_DOWNLOAD,)
    if choice.arch:
        known = {part.arch: part for part in own}
        own = tuple(known.get(arch, replace(own[0], arch=arch)) for arch in choice.arch)
    given: dict[str, Any] = {
        "data": choice.data,
        "products": choice.product,
        "seeds": choice.seeds,
        "epochs": choice.epochs,
        "angles": choice.angles,
    }
    return [replace(part, **{name: value for name, value in given.items() if value is not None}) for part in own]


def configs(study: str, choice: Choice, data_dir: Path | None = None) -> list[ClassifierConfig]:
    """The runs of a study, all products of a seed before the next seed: pairs are complete as early as can be.

    >>> [(run.product, run.seed) for run in configs("cifar", Choice(scale="small", arch=("resnet8",), seeds=2))]
    [('p', 0), ('pr', 0), ('p', 1), ('pr', 1)]
    """
    other = {name: getattr(choice, name) for name in ("batch_size", "optimizer", "learning_rate", "protocol")}
    return [
        ClassifierConfig(
            arch=part.arch, data=data, product=name, seed=seed, epochs=part.epochs, angles=part.angles, **other
        )
        for part in parts(study, choice, data_dir)
        for data, seed, name in product(part.data, range(part.seeds), part.products)
    ]
