"""The paper's captioning experiment as a sweep: cross-entropy, then REINFORCE, for each product and seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.material import material_of, places_of
from prproduct.captioning.training import train
from prproduct.lab.errors import InputError
from prproduct.lab.sweep import Job

PHASES = ("xe", "rl")


@dataclass(frozen=True)
class Scale:
    """What is trained, and for how long; what is None is the paper's."""

    products: tuple[str, ...]
    seeds: int
    network: dict[str, Any] = field(default_factory=dict)
    xe: dict[str, Any] = field(default_factory=dict)
    rl: dict[str, Any] = field(default_factory=dict)


_SMALL_NETWORK = {"hidden": 64, "embedding": 64, "attention": 64}
SCALES = {
    "quick": Scale(
        ("p", "pr"),
        1,
        {**_SMALL_NETWORK, "dropout": 0.1},
        {"epochs": 15, "batch_size": 20, "learning_rate": 5e-3, "angles": 100},
        {"epochs": 8, "batch_size": 20, "learning_rate": 5e-4, "angles": 100},
    ),
    "small": Scale(
        ("p", "r", "pr"),
        1,
        {"hidden": 256, "embedding": 256, "attention": 128},
        {"epochs": 5, "batch_size": 10, "angles": 300},  # many small steps: few epochs fit
        {"epochs": 1, "batch_size": 10, "angles": 300},
    ),
    "paper": Scale(("p", "r", "pr"), 1, {}, {"angles": 500}, {"angles": 500}),
}


@dataclass(frozen=True)
class Choice:
    """Which runs: a scale, and what is to be other than it says.

    >>> Choice(scale="huge")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: scale 'huge' is not known; there are quick, small, paper
    """

    scale: str = field(default="quick", metadata={"help": ", ".join(SCALES)})
    seeds: int | None = field(default=None, metadata={"help": "how many: 0, 1, …; the same for all products"})
    product: tuple[str, ...] | None = field(default=None, metadata={"help": "another product; may be given often"})
    xe_epochs: int | None = field(default=None, metadata={"help": "of cross-entropy"})
    rl_epochs: int | None = field(default=None, metadata={"help": "of REINFORCE"})

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InputError(f"scale {self.scale!r} is not known; there are {', '.join(SCALES)}")
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}, it must be at least 1")


def pairs(choice: Choice) -> list[tuple[CaptionerConfig, CaptionerConfig]]:
    """The configurations of both phases of each run.

    >>> [(xe.product, xe.seed, rl.phase) for xe, rl in pairs(Choice())]
    [('p', 0, 'rl'), ('pr', 0, 'rl')]
    """
    scale = SCALES[choice.scale]
    xe, rl = dict(scale.xe), dict(scale.rl)
    if choice.xe_epochs is not None:
        xe["epochs"] = choice.xe_epochs
    if choice.rl_epochs is not None:
        rl["epochs"] = choice.rl_epochs
    return [
        (
            CaptionerConfig(phase="xe", product=product, seed=seed, **scale.network, **xe),
            CaptionerConfig(phase="rl", product=product, seed=seed, **rl),
        )
        for seed in range(choice.seeds or scale.seeds)
        for product in choice.product or scale.products
    ]


def folder_of(output: Path, config: CaptionerConfig) -> Path:
    """Where a run lies in the folder of its sweep.

    >>> print(folder_of(Path("runs"), CaptionerConfig(phase="rl", product="tempered:0.5", seed=3)))
    runs/tempered-0.5/seed-3/rl
    """
    return output / (config.product or "pr").replace(":", "-") / f"seed-{config.seed}" / config.phase


def jobs(choice: Choice, output: Path, captions: str, source: Path | None) -> list[Job]:
    """A job for each product and seed: both phases, one after the other. Its folder is that of the second."""
    output, place = output.absolute(), None if source is None else source.absolute()
    what = captions if place is None else str(Path(captions).absolute())
    found = []
    for xe, rl in pairs(choice):
        target = folder_of(output, rl)
        call = partial(train_both, xe, rl, output, what, place)
        found.append(Job(str(target.parent.relative_to(output)), target, call, 1))
    return found


def train_both(xe: CaptionerConfig, rl: CaptionerConfig, output: Path, captions: str, source: Path | None) -> None:
    """Cross-entropy, then REINFORCE from its last epoch; what is finished stays as it is."""
    material = material_of(captions, source)
    places = places_of(captions, source)
    first = train(xe, folder_of(output, xe), material, places=places, resume=True)
    rl = replace(rl, product=xe.product)
    train(rl, folder_of(output, rl), material, places=places, start=first, resume=True)
