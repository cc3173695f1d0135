"""Captions of a whole split, or of all images that there are features of, as COCO's evaluation server wants them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prproduct.captioning.data.features import Features, key_of
from prproduct.captioning.data.training_batches import FeatureSource
from prproduct.captioning.describing import Search, describe
from prproduct.captioning.metrics.fields import ImageId, refuse, refuse_repeated, text_of
from prproduct.captioning.results import save_captions
from prproduct.captioning.training import check_features
from prproduct.captioning.use.speakers import Speaker
from prproduct.lab.errors import InputError

ALL = "all"  # in place of a split: every image of the features, described by anybody or not


def targets_of(output: Path, split: str, labels: Sequence[str]) -> list[Path]:
    """The file of each run: `output` if that is a .json, or one in that folder with a name as the server wants it.

    >>> [str(path) for path in targets_of(Path("out"), "test", ["pr, REINFORCE", "p, REINFORCE"])]
    ['out/captions_test_pr-REINFORCE_results.json', 'out/captions_test_p-REINFORCE_results.json']
    """
    if output.suffix == ".json":
        if len(labels) > 1:
            raise InputError(f"{output}: one file for {len(labels)} runs; give a folder, which gets a file for each")
        return [output]
    if output.is_file() or (output.suffix and not output.is_dir()):
        raise InputError(f"{output}: neither a .json file nor a folder; captions of a split are written as JSON")
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-") for label in labels]
    return [output / f"captions_{split}_{name}_results.json" for name in names]


def listed(path: Path, features: Features) -> list[ImageId]:
    """The image ids of a list, one a line; there must be features of each."""
    ids = [key_of(line.strip()) for line in text_of(path).splitlines() if line.strip()]
    refuse_repeated(path, "images listed more than once", ids)
    refuse(path, f"images without features in {features.path}", [image for image in ids if image not in features])
    return ids


def write_split(
    speakers: Sequence[Speaker],
    targets: Sequence[Path],
    features: FeatureSource,
    images: Sequence[ImageId],
    search: Search,
    tick: Callable[[int], Any] = lambda images: None,
) -> None:
    """A file of each speaker's captions, whole or not at all; nothing if the features do not fit one of them."""
    if not images:
        raise InputError("there are no images to caption in that split")
    for speaker in speakers:
        check_features(speaker.record, features)
    for speaker, target in zip(speakers, targets, strict=True):
        save_captions(target, list(describe(speaker.model, speaker.vocabulary, features, images, search, tick=tick)))
