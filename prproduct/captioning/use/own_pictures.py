"""Pictures that no captioner was trained on: encoded as its features were, and described."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prproduct.captioning import encoder
from prproduct.captioning.data.pictures import Picture, in_batches
from prproduct.captioning.describing import Description, Search, describe
from prproduct.captioning.encoder import Encoder
from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.use.speakers import Speaker
from prproduct.captioning.world.world import VOCABULARY as WORDS_OF_THE_WORLD
from prproduct.lab.errors import InputError

BATCH = 8  # pictures in memory as large as they are
LONGEST_SIDE = 640  # pixels of what is kept of a picture, to be shown


class Seen(NamedTuple):
    """A picture, made small, and what each speaker says about it."""

    picture: Picture
    image: Image.Image
    said: tuple[Description, ...]


class _Encoded(NamedTuple):
    """The features (pictures, regions, width) of a batch, by the places of its pictures."""

    arrays: NDArray[np.float32]

    def of(self, image: ImageId) -> NDArray[np.float32]:
        return self.arrays[int(image)]


def encoders_for(speakers: Sequence[Speaker], given: str | None = None) -> list[Encoder]:
    """The encoder that made the features of each speaker's run; `given` names it where the run does not know."""
    names = [_encoder_name(speaker, given) for speaker in speakers]
    loaded = {name: encoder.load(name) for name in dict.fromkeys(names)}
    fingerprints = {name: one.fingerprint for name, one in loaded.items()}
    for speaker, name in zip(speakers, names, strict=True):
        known = speaker.record.config["data"].get("encoder_fingerprint")
        if known not in (None, fingerprints[name]):
            raise InputError(
                f"{speaker.record.folder}: was trained on features of {name} with other weights or preparation: "
                f"{known}, here {fingerprints[name]}; install the version of its library that made them"
            )
    return [loaded[name] for name in names]


def _encoder_name(speaker: Speaker, given: str | None) -> str:
    folder, known = speaker.record.folder, speaker.record.config["data"].get("encoder")
    if known is None and given is None:
        if speaker.vocabulary == WORDS_OF_THE_WORLD:
            raise InputError(
                f"{folder}: was trained on the small world, and knows nothing else; caption its pictures with "
                "--captions world --split test -o FILE"
            )
        raise InputError(
            f"{folder}: was trained on features that do not say what made them of pictures, so that yours cannot be "
            "encoded alike; give their features (--features FILE --split all -o FILE), or --encoder if you know it"
        )
    if known is not None and given not in (None, known):
        raise InputError(f"{folder}: was trained on features of {known}, not of {given}; leave out --encoder")
    return str(known or given)


def look(
    pictures: Sequence[Picture],
    speakers: Sequence[Speaker],
    encoders: Sequence[Encoder],
    search: Search,
    unreadable: list[tuple[Picture, str]],
) -> Iterator[Seen]:
    """What each speaker says about each picture, in their order; those that cannot be read go to `unreadable`."""
    for batch in in_batches(pictures, BATCH, unreadable):
        images = [image for _, image in batch]
        features = {one.name: one(images) for one in dict.fromkeys(encoders)}
        said = []
        for speaker, one in zip(speakers, encoders, strict=True):
            _check_width(speaker, one, features[one.name].shape[2])
            encoded = _Encoded(features[one.name])
            said.append(list(describe(speaker.model, speaker.vocabulary, encoded, range(len(batch)), search)))
        for (picture, image), *about in zip(batch, *said, strict=True):
            image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            yield Seen(picture, image, tuple(about))


def _check_width(speaker: Speaker, one: Encoder, width: int) -> None:
    known = speaker.record.config["data"]["width"]
    if known != width:
        raise InputError(
            f"{speaker.record.folder}: was trained with features of another width: {known}; {one.name} gives {width}"
        )
