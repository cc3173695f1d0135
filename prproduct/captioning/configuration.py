"""What decides a captioner's training: its options, and what those that are not given are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prproduct.captioning.model import Captioner
from prproduct.conversion import convert
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import PRECISIONS
from prproduct.lab.keyed import check_seed
from prproduct.products import resolve

PHASES = ("xe", "rl")
BASELINES = ("greedy", "others")
# REINFORCE in two ways. "beam": the paper's text, which takes a beam of 5 "during CIDEr optimization". "sample": the
# authors' later public code, which uses the beam for evaluation only. On Flickr8k one epoch of the first raised the
# CIDEr of test captions, one of samples did not (docs/results/README.md): so the first is the default.
CANDIDATES: dict[str, dict[str, Any]] = {
    "beam": {"samples": 5, "baseline": "others"},
    "sample": {"samples": 1, "baseline": "greedy"},
}
# The paper gives the rates; epochs, batches and clipping are those of its author's code (docs/captioning.md).
DEFAULTS: dict[str, dict[str, Any]] = {
    "xe": {"epochs": 30, "batch_size": 64, "learning_rate": 5e-4},
    "rl": {"epochs": 35, "batch_size": 64, "learning_rate": 5e-5},
}
NETWORK = {"hidden": 512, "embedding": 512, "attention": 512, "dropout": 0.3, "batch_norm": False, "tanh_layer": False}


def _is(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class CaptionerConfig:
    """All that decides a run's numbers, but captions, features and the run it starts from.

    What is None follows from the phase, and for the network from the run it starts from.

    >>> CaptionerConfig(phase="rl").resolved().learning_rate
    5e-05
    >>> CaptionerConfig(phase="both")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: phase 'both' is not known; there are xe, rl
    """

    phase: str = _is("xe", "xe: cross-entropy with the references; rl: REINFORCE on CIDEr-D, from a run of xe")
    product: str | None = _is(None, "of all linear layers: p, r, pr, …; that of the run it starts from, or pr")
    seed: int = _is(0, "decides initial weights, the order of images and what is drawn, alike for all products")
    hidden: int | None = _is(None, "units of each LSTM; 512")
    embedding: int | None = _is(None, "width of embedded words and regions; 512")
    attention: int | None = _is(None, "width of the attention layer; 512")
    dropout: float | None = _is(None, "0.3; REINFORCE uses none")
    batch_norm: bool | None = _is(None, "normalise around the embeddings of regions, as the author's code does")
    tanh_layer: bool | None = _is(None, "a layer with tanh before the words, as the author's code has it")
    epochs: int | None = _is(None, "of training; 30 of xe, 35 of rl")
    batch_size: int | None = _is(None, "images of a step, over all processes; 64")
    captions_per_image: int = _is(5, "captions of each image in a step of xe")
    learning_rate: float | None = _is(None, "at the start; 5e-4 for xe, 5e-5 for rl")
    final_rate: float = _is(0.05, "the share of the learning rate that its cosine decay ends with")
    feedback_step: float = _is(0.05, "what the probability of feeding back a drawn word grows by, in xe,")
    feedback_every: int = _is(5, "every so many epochs,")
    feedback_limit: float = _is(0.25, "up to this")
    clip_value: float = _is(0.1, "gradients are brought between plus and minus this; 0: they are not")
    baseline: str | None = _is(
        None, "what a reward is compared with: greedy, or others: the mean of the image's others"
    )
    candidates: str = _is(
        "beam",
        "beam: the paper's REINFORCE, on the 5 best captions of a beam search, each against the others; sample: the "
        "authors' later code's, on one drawn caption against the greedy one",
    )
    samples: int | None = _is(None, "candidates of each image in a step of rl; 5 of a beam, 1 drawn")
    beams: int = _is(1, "of the search for the validation captions that choose an epoch")
    precision: str = _is("32", ", ".join(PRECISIONS))
    limit_train: int | None = _is(None, "train on the first so many training images only, for a first look")
    max_steps: int | None = _is(None, "end after so many steps, in the middle of an epoch too")
    angles: int = _is(0, "record the angles every so many steps; 0: never")
    log_every: int = _is(50, "steps between the records of a step")

    def __post_init__(self) -> None:
        for name, known in (
            ("phase", PHASES),
            ("baseline", (None, *BASELINES)),
            ("candidates", tuple(CANDIDATES)),
            ("precision", tuple(PRECISIONS)),
        ):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} {getattr(self, name)!r} is not known; there are {', '.join(filter(None, known))}"
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (value >= least and math.isfinite(value)):
                raise InputError(f"{name} is {value}, it must be at least {least}")
        for name in ("dropout", "feedback_limit", "feedback_step", "final_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} is {value}, it must be from 0 to 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate}, it must be a number above 0")
        if self.phase == "rl" and self.baseline == "others" and self.samples is not None and self.samples < 2:
            raise InputError("the baseline 'others' needs at least 2 samples of each image: --samples 5")
        check_seed(self.seed)
        if self.product is not None:
            try:
                resolve(self.product)
            except ValueError as error:
                raise InputError(str(error)) from None

    def resolved(self, start: CaptionerConfig | None = None) -> CaptionerConfig:
        """With everything given; the network as that of `start`, the run it goes on from."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        network = {name: getattr(start, name) for name in NETWORK} if start else NETWORK
        for name, value in network.items():
            if start and given[name] not in (None, value) and name != "dropout":
                raise InputError(f"{name} is {given[name]}, in the run it starts from {value}; leave it out")
        product = start.product if start else "pr"
        otherwise = {"product": product, **network, **DEFAULTS[self.phase], **CANDIDATES[self.candidates]}
        return replace(self, **{name: value for name, value in otherwise.items() if given[name] is None})

    def build(self, vocabulary_size: int, feature_width: int) -> Captioner:
        """The captioner under the product; torch's random numbers decide its weights, whatever the product."""
        network = {name: getattr(self, name) for name in NETWORK}
        model = Captioner(vocabulary_size, feature_width, **network)
        convert(model, self.product or "pr")
        return model

    def feedback(self, epoch: int) -> float:
        """The probability that a word is replaced by one that the model draws.

        >>> [CaptionerConfig().feedback(epoch) for epoch in (0, 4, 5, 10, 29)]
        [0.0, 0.0, 0.05, 0.1, 0.25]
        """
        if self.phase == "rl":
            return 0.0
        return min(self.feedback_limit, self.feedback_step * (epoch // self.feedback_every))

    def rate(self, progress: float) -> float:
        """The learning rate when a share `progress` of the training is done: a half cosine.

        >>> [round(CaptionerConfig(learning_rate=1.0).rate(progress), 3) for progress in (0, 0.5, 1)]
        [1.0, 0.525, 0.05]
        """
        highest = self.learning_rate or DEFAULTS[self.phase]["learning_rate"]
        return highest * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * progress)))


_LEAST: dict[str, float] = {
    **dict.fromkeys(("clip_value", "angles"), 0),
    **dict.fromkeys(("hidden", "embedding", "attention", "epochs", "batch_size", "captions_per_image"), 1),
    **dict.fromkeys(("feedback_every", "samples", "beams", "log_every", "limit_train", "max_steps"), 1),
}
