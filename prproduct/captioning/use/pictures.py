"""Captions of a user's own pictures: encode them as the training images of each captioner were, then decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prproduct.captioning import encoder
from prproduct.captioning.data.pictures import Picture, in_batches
from prproduct.captioning.dataset import trained_on_world
from prproduct.captioning.encoder import Encoder
from prproduct.captioning.inference import GeneratedCaption, Search, TrainedCaptioner, generate_captions
from prproduct.captioning.input_files import ImageId
from prproduct.lab.errors import InputError

BATCH = 8  # pictures held in memory at full size
LONGEST_SIDE = 640  # pixels of the copy of a picture that is kept for figures and the page


class CaptionedPicture(NamedTuple):
    """A picture, a small copy of it, and the caption of each captioner."""

    picture: Picture
    image: Image.Image
    captions: tuple[GeneratedCaption, ...]


class _BatchFeatures(NamedTuple):
    """The features (pictures, regions, width) of a batch; image ids are indices into it."""

    arrays: NDArray[np.float32]

    def of(self, image: ImageId) -> NDArray[np.float32]:
        return self.arrays[int(image)]


def encoders_for(captioners: Sequence[TrainedCaptioner], given: str | None = None) -> list[Encoder]:
    """The encoder of each captioner's training features; `given` names it for runs that do not store it."""
    names = [_encoder_name(captioner, given) for captioner in captioners]
    loaded = {name: encoder.load(name) for name in dict.fromkeys(names)}
    fingerprints = {name: one.fingerprint for name, one in loaded.items()}
    for captioner, name in zip(captioners, names, strict=True):
        known = captioner.record.config["data"].get("encoder_fingerprint")
        if known not in (None, fingerprints[name]):
            raise InputError(
                f"{captioner.record.folder}: was trained on features of {name} with other weights or preparation: "
                f"{known}, here {fingerprints[name]}; install the version of its library that made them"
            )
    return [loaded[name] for name in names]


def _encoder_name(captioner: TrainedCaptioner, given: str | None) -> str:
    folder, known = captioner.record.folder, captioner.record.config["data"].get("encoder")
    if known is None and given is None:
        if trained_on_world(captioner.record):
            raise InputError(
                f"{folder}: was trained on the toy world, and knows nothing else; caption its pictures with "
                "--captions world --split test -o FILE"
            )
        raise InputError(
            f"{folder}: was trained on features that do not say what made them of pictures, so that yours cannot be "
            "encoded alike; give their features (--features FILE --split all -o FILE), or --encoder if you know it"
        )
    if known is not None and given not in (None, known):
        raise InputError(f"{folder}: was trained on features of {known}, not of {given}; leave out --encoder")
    return str(known or given)


def caption_pictures(
    pictures: Sequence[Picture],
    captioners: Sequence[TrainedCaptioner],
    encoders: Sequence[Encoder],
    search: Search,
    unreadable: list[tuple[Picture, str]],
) -> Iterator[CaptionedPicture]:
    """The pictures with the captions of each captioner; unreadable ones are appended to `unreadable`, with the reason.

    `encoders[i]` is the encoder of `captioners[i]`. Each distinct encoder runs once per picture.
    """
    for batch in in_batches(pictures, BATCH, unreadable):
        images = [image for _, image in batch]
        features = {one.name: one(images) for one in dict.fromkeys(encoders)}  # (pictures, regions, width)
        by_captioner = []
        for captioner, one in zip(captioners, encoders, strict=True):
            _check_width(captioner, one, features[one.name].shape[2])
            source = _BatchFeatures(features[one.name])
            generated = generate_captions(captioner.model, captioner.vocabulary, source, range(len(batch)), search)
            by_captioner.append(list(generated))
        for (picture, image), *captions in zip(batch, *by_captioner, strict=True):
            image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            yield CaptionedPicture(picture, image, tuple(captions))


def _check_width(captioner: TrainedCaptioner, one: Encoder, width: int) -> None:
    known = captioner.record.config["data"]["width"]
    if known != width:
        raise InputError(
            f"{captioner.record.folder}: was trained with features of another width: {known}; {one.name} gives {width}"
        )
