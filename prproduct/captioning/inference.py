"""Trained captioners: load them from run folders, and generate captions of images, greedily or by beam search.

Nothing here needs training code: `prproduct caption` imports this module and not `training`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.batches import RegionSource, collate
from prproduct.captioning.data.prepared import LONGEST, VOCABULARY, CaptionSet, read_vocabulary
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.decoding import Limits, beam, check_beams
from prproduct.captioning.input_files import ImageId
from prproduct.captioning.model import Captioner
from prproduct.lab import checkpoints, runs
from prproduct.lab.errors import InputError
from prproduct.lab.options import option
from prproduct.lab.report.content import display

PHASE_NAMES = {"xe": "cross-entropy", "rl": "REINFORCE"}
IMAGES_AT_ONCE = 50  # in a batch of the search


@dataclass(frozen=True)
class Search:
    """Settings of the search for a caption; the fields are also command-line options."""

    beams: int = option(5, "beginnings that are followed at a time; 1: the likeliest word")
    longest: int | None = option(None, f"words at most; else those of the captions of --split, {LONGEST} for pictures")
    shortest: int = option(0, "words of a caption at least")
    unknown: bool = option(False, "allow UNK, the word for all rare ones")
    block_trigrams: bool = option(False, "never say three words in the same order twice")
    length_power: float = option(0.0, "divide log-probabilities by the length to this power")

    def __post_init__(self) -> None:
        check_beams(self.beams, self.length_power)
        if self.longest is not None:
            Limits(self.longest, self.shortest)  # raises for impossible lengths

    def up_to(self, longest: int = LONGEST) -> Search:
        """This search, with at most `longest` words if it does not say how many."""
        return replace(self, longest=longest) if self.longest is None else self

    def limits(self, vocabulary: Vocabulary) -> Limits:
        """The constraints on captions with this vocabulary."""
        unknown = None if self.unknown else vocabulary.unknown
        return Limits(self.longest or LONGEST, self.shortest, unknown, self.block_trigrams)


@dataclass(frozen=True, eq=False)
class GeneratedCaption:
    """The caption that a captioner generated for an image."""

    image: ImageId
    caption: str
    words: tuple[str, ...]
    attention: NDArray[np.float32]  # (words, regions): the attention weights of each word


def generate_captions(
    model: Captioner,
    vocabulary: Vocabulary,
    features: RegionSource,
    images: Sequence[ImageId],
    search: Search | None = None,
    *,
    progress: Callable[[int], Any] = lambda images: None,
) -> Iterator[GeneratedCaption]:
    """A caption of each image, in their order; `progress` is called with the number of images of each batch."""
    search, device = search or Search(), next(model.parameters()).device
    limits = search.limits(vocabulary)
    for start in range(0, len(images), IMAGES_AT_ONCE):
        batch = images[start : start + IMAGES_AT_ONCE]
        regions = collate([features.of(image) for image in batch])
        with torch.inference_mode():
            memory = model.encode(*regions.to(device))
            found = beam(model, memory, beams=search.beams, length_power=search.length_power, limits=limits)
        region_counts = regions.present.sum(1).tolist()
        for row, image in enumerate(batch):
            caption = vocabulary.decode(found.words[row, 0].tolist())
            words = tuple(caption.split(" ")) if caption else ()  # a word may contain a no-break space: "1 1/2"
            attention = found.attention[row, 0, : len(words), : region_counts[row]].float().cpu().numpy()
            yield GeneratedCaption(image, caption, words, attention)
        progress(len(batch))


@dataclass(frozen=True, eq=False)
class TrainedCaptioner:
    """A captioner with its vocabulary, and the run or the card that it comes from."""

    record: runs.Record
    label: str
    model: Captioner
    vocabulary: Vocabulary
    about: str  # its origin, in one line

    @property
    def title(self) -> str:
        """The label on pages and figures, with the product's name as reports show it: PR instead of pr."""
        product, rest = self.label.split(", ", 1)
        return f"{display(product)}, {rest}"


def open_runs(
    folders: Sequence[Path], which: str = "best", captions: CaptionSet | None = None
) -> list[TrainedCaptioner]:
    """The captioner of each run's best or last epoch; `captions`, if given, must have the runs' vocabulary."""
    records = [runs.read(folder) for folder in folders]
    labels = run_labels([config_of(record) for record in records], folders)
    vocabularies = [_vocabulary(record, captions) for record in records]
    return [
        TrainedCaptioner(
            record, label, load_captioner(record.folder, which), vocabulary, f"{record.folder}, {which} epoch"
        )
        for record, label, vocabulary in zip(records, labels, vocabularies, strict=True)
    ]


def run_labels(configs: Sequence[CaptionerConfig], folders: Sequence[Path]) -> list[str]:
    """Product and phase of each run; with the seed, or the folder, if these alone are not distinct.

    >>> pr, rl = CaptionerConfig(product="pr"), CaptionerConfig(product="pr", phase="rl")
    >>> run_labels([pr, rl], [Path("a"), Path("b")])
    ['pr, cross-entropy', 'pr, REINFORCE']
    >>> run_labels([pr, CaptionerConfig(product="pr", seed=1)], [Path("a"), Path("b")])
    ['pr, cross-entropy, seed 0', 'pr, cross-entropy, seed 1']
    """
    short = [f"{config.product}, {PHASE_NAMES[config.phase]}" for config in configs]
    with_seed = [f"{label}, seed {config.seed}" for label, config in zip(short, configs, strict=True)]
    with_folder = [f"{label}, {folder}" for label, folder in zip(short, folders, strict=True)]
    for labels in (short, with_seed, with_folder):
        if len(set(labels)) == len(labels):
            return labels
    repeated = next(folder for folder in folders if folders.count(folder) > 1)
    raise InputError(f"{repeated}: given twice; give each run once")


def config_of(record: runs.Record) -> CaptionerConfig:
    """The configuration of a captioner's run."""
    if record.config.get("task") != "captioner":
        raise InputError(f"{record.folder}: is a run of a {record.config.get('task')}, not of a captioner")
    path = record.folder / runs.CONFIG
    data = record.config.get("data")
    for key, kind in (("vocabulary", str), ("words", int), ("width", int)):
        if not isinstance(data, dict) or not isinstance(data.get(key), kind):
            raise InputError(f"{path}: is not the configuration of a captioner's run (its data has no {key})")
    try:
        return CaptionerConfig(**record.config["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not the configuration of a captioner's run ({error})") from None


def load_captioner(folder: str | Path, which: str = "best") -> Captioner:
    """The captioner of a run in eval mode, of its best epoch by validation CIDEr or of its last."""
    record = runs.read(folder)
    config, data = config_of(record), record.config["data"]
    checkpoint = checkpoints.load_epoch(record, which)
    model = config.build(data["words"], data["width"])
    model.load_state_dict(checkpoint.model)
    return model.eval()


def _vocabulary(record: runs.Record, captions: CaptionSet | None) -> Vocabulary:
    """The vocabulary of a run, from its folder or from `captions`, checked against the run's fingerprint."""
    path = record.folder / VOCABULARY
    remedy = "give --captions, the folder that the run was trained with"
    if captions is not None:
        vocabulary = captions.vocabulary
    elif path.exists():
        vocabulary = read_vocabulary(path, remedy)
    else:
        raise InputError(f"{record.folder}: keeps no vocabulary; {remedy}")
    known = record.config["data"]["vocabulary"]
    if vocabulary.fingerprint != known:
        raise InputError(
            f"{record.folder}: was trained with another vocabulary: {known}, not {vocabulary.fingerprint}; {remedy}"
        )
    return vocabulary
