"""Trained captioners with their words, by the folders of their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.prepared import VOCABULARY, CaptionSet, read_vocabulary
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.model import Captioner
from prproduct.captioning.training import config_of, load_captioner
from prproduct.lab import runs
from prproduct.lab.errors import InputError

PHASE_NAMES = {"xe": "cross-entropy", "rl": "REINFORCE"}


@dataclass(frozen=True, eq=False)
class Speaker:
    """A run's captioner, and what its ids mean."""

    record: runs.Record
    label: str
    model: Captioner
    vocabulary: Vocabulary
    about: str  # where it comes from, in a line


def open_speakers(folders: Sequence[Path], which: str = "best", captions: CaptionSet | None = None) -> list[Speaker]:
    """The captioner of each run's best or last epoch; with `captions`, they must have the runs' vocabulary."""
    records = [runs.read(folder) for folder in folders]
    labels = labels_of([config_of(record) for record in records], folders)
    vocabularies = [_vocabulary(record, captions) for record in records]
    return [
        Speaker(record, label, load_captioner(record.folder, which), vocabulary, f"{record.folder}, {which} epoch")
        for record, label, vocabulary in zip(records, labels, vocabularies, strict=True)
    ]


def labels_of(configs: Sequence[CaptionerConfig], folders: Sequence[Path]) -> list[str]:
    """Product and phase of each run; with the seed, or the folder, where these tell them apart.

    >>> pr, rl = CaptionerConfig(product="pr"), CaptionerConfig(product="pr", phase="rl")
    >>> labels_of([pr, rl], [Path("a"), Path("b")])
    ['pr, cross-entropy', 'pr, REINFORCE']
    >>> labels_of([pr, CaptionerConfig(product="pr", seed=1)], [Path("a"), Path("b")])
    ['pr, cross-entropy, seed 0', 'pr, cross-entropy, seed 1']
    """
    kinds: list[Callable[[CaptionerConfig, Path], str]] = [
        lambda config, folder: f"{config.product}, {PHASE_NAMES[config.phase]}",
        lambda config, folder: f"{config.product}, {PHASE_NAMES[config.phase]}, seed {config.seed}",
        lambda config, folder: f"{config.product}, {PHASE_NAMES[config.phase]}, {folder}",
    ]
    for kind in kinds:
        labels = [kind(config, folder) for config, folder in zip(configs, folders, strict=True)]
        if len(set(labels)) == len(labels):
            return labels
    repeated = next(folder for folder in folders if folders.count(folder) > 1)
    raise InputError(f"{repeated}: given twice; give each run once")


def _vocabulary(record: runs.Record, captions: CaptionSet | None) -> Vocabulary:
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
