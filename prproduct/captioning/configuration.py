"""The configuration of a captioner's training: options, their defaults in each phase, and the network they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from prproduct.captioning.model import Captioner
from prproduct.conversion import convert
from prproduct.lab.checks import check_known, check_least, check_positive, product_name
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import PRECISIONS
from prproduct.lab.options import option
from prproduct.lab.seeds import check_seed

PHASES = ("xe", "rl")
BASELINES = ("greedy", "others")
# Two variants of REINFORCE. "beam": the paper's text, which uses a beam of 5 "during CIDEr optimization". "sample": the
# authors' later public code, which uses the beam for evaluation only. On Flickr8k one epoch of the first raised the
# CIDEr of test captions, and one of the second did not (docs/results/README.md), so the first is the default.
CANDIDATES: dict[str, dict[str, Any]] = {
    "beam": {"samples": 5, "baseline": "others"},
    "sample": {"samples": 1, "baseline": "greedy"},
}
# The learning rates are the paper's; batch size and 35 epochs are those of its author's code, 30 epochs are ours.
DEFAULTS: dict[str, dict[str, Any]] = {
    "xe": {"epochs": 30, "batch_size": 64, "learning_rate": 5e-4},
    "rl": {"epochs": 35, "batch_size": 64, "learning_rate": 5e-5},
}
NETWORK = {"hidden": 512, "embedding": 512, "attention": 512, "dropout": 0.3, "batch_norm": False, "tanh_layer": False}
UNUSED = {  # options that a phase does not use
    "xe": ("candidates", "samples", "baseline"),
    "rl": ("captions_per_image", "feedback_step", "feedback_every", "feedback_limit", "dropout"),
}
# Least values of options.
_LEAST: dict[str, float] = {
    **dict.fromkeys(("clip_value", "angles"), 0),
    **dict.fromkeys(("hidden", "embedding", "attention", "epochs", "batch_size", "captions_per_image"), 1),
    **dict.fromkeys(("feedback_every", "samples", "beams", "log_every", "limit_train", "max_steps"), 1),
}


@dataclass(frozen=True)
class CaptionerConfig:
    """Everything that determines a run's numbers, except captions, features and the run it starts from.

    `resolved` replaces None by the default of the phase, and for the network by the value of the run it starts from.

    >>> CaptionerConfig(phase="rl").resolved().learning_rate
    5e-05
    >>> CaptionerConfig(phase="both")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: phase 'both' is not known; there are xe, rl
    """

    phase: str = option("xe", "xe: cross-entropy with the references; rl: REINFORCE on CIDEr-D, from a run of xe")
    product: str | None = option(
        None, "of all linear layers: p, r, pr, …; default: that of the run it starts from, or pr"
    )
    seed: int = option(0, "of initial weights, order of images and random choices; the same for all products")
    hidden: int | None = option(None, "units of each LSTM; 512")
    embedding: int | None = option(None, "width of embedded words and regions; 512")
    attention: int | None = option(None, "width of the attention layer; 512")
    dropout: float | None = option(None, "0.3; REINFORCE uses none")
    batch_norm: bool | None = option(None, "BatchNorm around the embeddings of regions, as in the author's code")
    tanh_layer: bool | None = option(None, "a linear layer with tanh before the output layer, as in the author's code")
    epochs: int | None = option(None, "training epochs; 30 for xe, 35 for rl")
    batch_size: int | None = option(None, "images per step, over all processes; 64")
    captions_per_image: int = option(5, "captions per image in a step of xe")
    learning_rate: float | None = option(None, "at the start; 5e-4 for xe, 5e-5 for rl")
    final_rate: float = option(0.05, "the cosine decay ends at this share of the learning rate")
    feedback_step: float = option(0.05, "xe: the probability of scheduled sampling grows by this,")
    feedback_every: int = option(5, "every this many epochs,")
    feedback_limit: float = option(0.25, "up to this")
    clip_value: float = option(0.1, "gradient values are clipped to plus and minus this; 0: no clipping")
    baseline: str | None = option(
        None, "baseline of a reward: greedy, the greedy caption; or others, the mean of the image's other candidates"
    )
    candidates: str = option(
        "beam",
        "beam: the paper's REINFORCE, on the 5 best captions of a beam search, each against the others; sample: the "
        "authors' later code, on one sampled caption against the greedy one",
    )
    samples: int | None = option(None, "candidates per image in a step of rl; 5 of a beam, 1 sampled")
    beams: int = option(1, "beams of the search for validation captions, which select the best epoch")
    precision: str = option("32", ", ".join(PRECISIONS))
    limit_train: int | None = option(None, "train on the first training images only, this many, for a quick try")
    max_steps: int | None = option(None, "end after this many steps, also within an epoch")
    angles: int = option(0, "record angles every this many steps; 0: never")
    log_every: int = option(50, "steps between two step records")

    def __post_init__(self) -> None:
        for name, known in (
            ("phase", PHASES),
            ("baseline", BASELINES),
            ("candidates", CANDIDATES),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) is not None:
                check_known(name, getattr(self, name), known)
        for name, least in _LEAST.items():
            check_least(name, getattr(self, name), least)
        for name in ("dropout", "feedback_limit", "feedback_step", "final_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} is {value}, it must be from 0 to 1")
        check_positive("learning_rate", self.learning_rate)
        if self.phase == "rl" and self.baseline == "others" and self.samples is not None and self.samples < 2:
            raise InputError("the baseline 'others' needs at least 2 samples of each image: --samples 5")
        check_seed(self.seed)
        if self.product is not None:
            object.__setattr__(self, "product", product_name(self.product))

    def resolved(self, start: CaptionerConfig | None = None) -> CaptionerConfig:
        """The configuration without None; the network is that of `start`, the run that REINFORCE starts from."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        network = {name: getattr(start, name) for name in NETWORK} if start else NETWORK
        for name, value in network.items():
            if start and given[name] not in (None, value):
                raise InputError(f"{name} is {given[name]}, in the run it starts from {value}; leave it out")
        product = start.product if start else "pr"
        defaults = {"product": product, **network, **DEFAULTS[self.phase], **CANDIDATES[self.candidates]}
        usual = {f.name: f.default for f in fields(self)} | defaults
        for name in UNUSED[self.phase]:
            if given[name] not in (None, usual[name]):
                raise InputError(f"{name} has no effect in phase {self.phase}; leave it out")
        return replace(self, **{name: value for name, value in defaults.items() if given[name] is None})

    def build(self, vocabulary_size: int, feature_width: int) -> Captioner:
        """A converted captioner; its initial weights depend on torch's random state, not on the product."""
        network = {name: getattr(self, name) for name in NETWORK}
        model = Captioner(vocabulary_size, feature_width, **network)
        convert(model, self.product or "pr")
        return model

    def feedback(self, epoch: int) -> float:
        """The probability of scheduled sampling in an epoch (from 0).

        >>> [CaptionerConfig().feedback(epoch) for epoch in (0, 4, 5, 10, 29)]
        [0.0, 0.0, 0.05, 0.1, 0.25]
        """
        if self.phase == "rl":
            return 0.0
        return min(self.feedback_limit, self.feedback_step * (epoch // self.feedback_every))

    def rate(self, progress: float) -> float:
        """The learning rate at `progress` of the training, from 0 to 1: a half cosine.

        >>> [round(CaptionerConfig(learning_rate=1.0).rate(progress), 3) for progress in (0, 0.5, 1)]
        [1.0, 0.525, 0.05]
        """
        highest = self.learning_rate or DEFAULTS[self.phase]["learning_rate"]
        return highest * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * progress)))
