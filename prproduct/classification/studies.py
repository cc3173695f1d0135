"""The paper's two studies of classifiers as lists of runs and as the jobs of a sweep, at three scales.

`gradients` is the study of the paper's introduction (what does each part of the gradient do?), `cifar` its Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from prproduct.classification.data import load, split
from prproduct.classification.data.fetch import Report, silent
from prproduct.classification.data.locate import find
from prproduct.classification.data.sources import SOURCES, source
from prproduct.classification.training import ClassifierConfig, train
from prproduct.lab import runs
from prproduct.lab.checks import check_known, check_least, product_name
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import Hardware
from prproduct.lab.options import option
from prproduct.lab.sweep import Job

SCALES = ("quick", "small", "paper")


@dataclass(frozen=True)
class Part:
    """A network of a study, its data sets, products and number of seeds; epochs=None means those of its recipe."""

    arch: str
    data: tuple[str, ...]
    products: tuple[str, ...]
    seeds: int
    epochs: int | None = None
    angles: int = 0  # record the angles every so many steps; 0: never


_FIVE = ("p", "no-length", "no-direction", "r", "pr")
_BOTH = ("p", "pr")
_MLP = Part("mlp", ("fashion-mnist",), _FIVE, seeds=5, angles=100)
_PAPER_NETS = ("resnet110", "preresnet110", "wrn-28-10", "densenet-bc-100-12")
STUDIES: dict[str, dict[str, tuple[Part, ...]]] = {
    "gradients": {
        "quick": (replace(_MLP, seeds=2, epochs=2),),
        "small": (_MLP,),
        "paper": (replace(_MLP, seeds=10),),  # the paper states neither epochs nor seeds
    },
    "cifar": {
        "quick": (Part("resnet8", ("cifar10",), _BOTH, seeds=1, epochs=1, angles=88),),
        "small": (Part("resnet8", ("cifar10",), _BOTH, seeds=3, epochs=8, angles=88),),
        "paper": tuple(Part(net, ("cifar10", "cifar100"), _BOTH, seeds=3, angles=500) for net in _PAPER_NETS),
    },
}
# The quick study where Fashion-MNIST is not on disk: digits need no download. An epoch has 41 steps.
_WITHOUT_DOWNLOAD = replace(_MLP, data=("digits",), seeds=2, angles=10)


@dataclass(frozen=True)
class Choice:
    """Options of `prproduct reproduce`: the scale of a study, and settings that replace those of the scale.

    >>> Choice(scale="huge")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: scale 'huge' is not known; there are quick, small, paper
    """

    scale: str = option("quick", ", ".join(SCALES))
    seeds: int | None = option(None, "number of seeds, 0, 1, …, the same for all products")
    arch: tuple[str, ...] | None = option(None, "train this network instead; may be given several times")
    data: tuple[str, ...] | None = option(
        None, f"use this data set instead ({', '.join(SOURCES)}); may be given several times"
    )
    product: tuple[str, ...] | None = option(None, "train under this product instead; may be given several times")
    epochs: int | None = option(None, "number of epochs; the recipe's milestones keep their share of them")
    batch_size: int | None = option(None, "images of a training step")
    optimizer: str | None = option(None, "sgd or adam")
    learning_rate: float | None = option(None, "learning rate before the first milestone")
    protocol: str = option("validation", "validation holds out a tenth to choose an epoch by; paper trains on all")
    angles: int | None = option(None, "record the angles every so many steps; 0: never")
    compile: bool = option(False, "train with torch.compile")
    channels_last: bool = option(False, "images and weights in channels-last layout, which is faster on CPUs")

    def __post_init__(self) -> None:
        check_known("scale", self.scale, SCALES)
        check_least("seeds", self.seeds, 1)
        if self.product:
            object.__setattr__(self, "product", tuple(map(product_name, self.product)))
        for name in ("arch", "data", "product"):
            given = getattr(self, name) or ()
            if len(set(given)) < len(given):
                raise InputError(f"{name} is given twice: {', '.join(given)}")


def parts(study: str, choice: Choice, data_dir: Path | None = None) -> list[Part]:
    """Return the parts of a study with the options applied.

    A network that the scale does not have gets the data, products, seeds and epochs of the scale's first network. The
    quick study of gradients uses digits where Fashion-MNIST is not on disk.

    >>> [(part.arch, part.seeds, part.epochs) for part in parts("cifar", Choice(scale="small"))]
    [('resnet8', 3, 8)]
    """
    own = STUDIES[study][choice.scale]
    if (study, choice.scale) == ("gradients", "quick") and (
        choice.data == ("digits",) or (not choice.data and find(source("fashion-mnist"), data_dir) is None)
    ):
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
    """Return the configurations of a study, all products of a seed before the next seed, so that pairs complete early.

    >>> [(run.product, run.seed) for run in configs("cifar", Choice(scale="small", arch=("resnet8",), seeds=2))]
    [('p', 0), ('pr', 0), ('p', 1), ('pr', 1)]
    """
    names = ("batch_size", "optimizer", "learning_rate", "protocol", "compile", "channels_last")
    shared = {name: getattr(choice, name) for name in names}
    return [
        ClassifierConfig(
            arch=part.arch, data=data, product=name, seed=seed, epochs=part.epochs, angles=part.angles, **shared
        )
        for part in parts(study, choice, data_dir)
        for data, seed, name in product(part.data, range(part.seeds), part.products)
    ]


def run_folder(config: ClassifierConfig) -> Path:
    """Return the folder of a run, relative to that of its study.

    >>> print(run_folder(ClassifierConfig(product="tempered:0.5", seed=3)))
    digits/mlp/tempered-0.5/seed-3
    """
    return Path(config.data, config.arch, runs.folder_name(config.product), f"seed-{config.seed}")


def jobs(
    configs: Sequence[ClassifierConfig],
    folder: Path,
    *,
    accelerator: str = "auto",
    data_dir: Path | None = None,
    report: Report = silent,
) -> list[Job]:
    """Return a job for each configuration, with absolute paths, since workers may run in another folder.

    Data sets are downloaded and verified here, once. InputError if a folder holds a run of another configuration.
    """
    hardware, place = Hardware(accelerator=accelerator), data_dir.absolute() if data_dir else None
    wanted = dict.fromkeys((config.data, config.normalisation) for config in configs)
    datasets = {key: load(key[0], place, normalisation=key[1], report=report) for key in wanted}
    found = []
    for config in configs:
        dataset, target = datasets[config.data, config.normalisation], folder.absolute() / run_folder(config)
        runs.refuse_another(target, config.identity(dataset))
        steps = math.ceil(len(split(dataset, config.protocol).train) / config.recipe.batch_size)
        call = partial(train, config, target, resume=True, hardware=hardware, data_dir=place)
        found.append(Job(str(run_folder(config)), target, call, config.recipe.epochs * steps))
    return found
