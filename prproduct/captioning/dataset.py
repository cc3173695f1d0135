"""The captions and features that a captioner is trained on or applied to, opened by the names that a user gives.

Captions are a folder of `prproduct data captions`, with features in a file or folder; or "world", the embedded toy data
set, which brings its own features. The toy world is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prproduct.captioning.data import features, prepared
from prproduct.captioning.data.batches import FeatureSource
from prproduct.captioning.data.features import EncoderId, Features
from prproduct.captioning.data.prepared import SPLITS, CaptionSet
from prproduct.lab.errors import InputError
from prproduct.lab.runs import Record

WORLD = "world"  # the name of the toy world in place of a folder of captions


class CaptionDataset(NamedTuple):
    """Captions of images, and the features of the same images."""

    captions: CaptionSet
    features: FeatureSource

    @property
    def identity(self) -> dict[str, Any]:
        """Fingerprints and sizes for a run's config.json; captioning other pictures needs the encoder's name."""
        encoder = self.features.encoder if isinstance(self.features, Features) else None
        return {
            "captions": self.captions.fingerprint,
            "vocabulary": self.captions.vocabulary.fingerprint,
            "words": len(self.captions.vocabulary),
            "features": self.features.fingerprint,
            "width": self.features.width,
            "encoder": encoder.name if encoder else None,
            "encoder_fingerprint": encoder.fingerprint if encoder else None,
        }


def open_dataset(captions: str, source: Path | None) -> CaptionDataset:
    """The data set of `--captions` and `--features`.

    >>> open_dataset("world", Path("features.h5"))
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: the world has features of its own; leave out --features
    """
    if captions == WORLD:
        if source is not None:
            raise InputError("the world has features of its own; leave out --features")
        from prproduct.captioning.world import World

        world = World()
        return CaptionDataset(world.captions, world.features)
    if source is None:
        raise InputError("features of the images are needed: give --features, as `prproduct data features` writes them")
    return CaptionDataset(prepared.read(Path(captions)), features.open(source))


def dataset_options(captions: str, source: Path | None) -> dict[str, Path | str | None]:
    """`--captions` and `--features` by the names of their parameters, as a run's folder stores them for `--resume`."""
    return {"captions": captions if captions == WORLD else Path(captions), "source": source}


def read_captions(captions: str) -> CaptionSet:
    """The captions of a folder of `prproduct data captions`, or of the toy world."""
    return open_dataset(WORLD, None).captions if captions == WORLD else prepared.read(captions)


def trained_on_world(record: Record) -> bool:
    """True if a run has the vocabulary of the toy world."""
    from prproduct.captioning.world import VOCABULARY

    return bool(record.config["data"]["vocabulary"] == VOCABULARY.fingerprint)


def check_ids(dataset: CaptionDataset, splits: Sequence[str] = SPLITS) -> None:
    """Raise InputError if an image of the splits has no features: found during training, it would cost the epoch."""
    captions, features = dataset
    of_splits = [(image.id, split) for split in splits for image in captions.of(split)]
    missing = [(image, split) for image, split in of_splits if image not in features]
    if missing:
        where = features.path if isinstance(features, Features) else "the features"
        image, split = missing[0]
        raise InputError(
            f"{where}: no features of {len(missing):,} of {len(of_splits):,} images, the first of them image {image} "
            f"of {split}; encode their pictures too (prproduct data features), or prepare captions without them"
        )


def check_fits(record: Record, dataset: CaptionDataset) -> None:
    """Raise InputError unless the data set has the run's vocabulary, feature width and encoder."""
    check_features(record, dataset.features)
    trained, given = record.config["data"]["vocabulary"], dataset.identity["vocabulary"]
    _check_equal(record, "another vocabulary", trained, given, "--captions")


def check_features(record: Record, features: FeatureSource) -> None:
    """Raise InputError for features of another width than the run's, or of another encoder if both name theirs."""
    trained = record.config["data"]
    _check_equal(record, "features of another width", trained["width"], features.width, "--captions and --features")
    encoder = features.encoder if isinstance(features, Features) else None
    if encoder and trained.get("encoder"):
        trained_by = EncoderId(trained["encoder"], trained["encoder_fingerprint"])
        known, given = (f"{name} ({digits})" for name, digits in (trained_by, encoder))
        _check_equal(record, "features of another encoder", known, given, "--features")


def _check_equal(record: Record, what: str, trained: object, given: object, options: str) -> None:
    if trained != given:
        raise InputError(f"{record.folder}: was trained with {what}: {trained}, not {given}; give its own ({options})")
