"""The captions and features that a user names."""

from __future__ import annotations

from pathlib import Path

from prproduct.captioning.data import features, prepared
from prproduct.captioning.training import Material
from prproduct.captioning.world.world import WORLD, World
from prproduct.lab.errors import InputError


def places_of(captions: str, source: Path | None) -> dict[str, Path | str | None]:
    """The same by the names of the command's options, for the run's folder."""
    return {"captions": captions if captions == WORLD else Path(captions), "source": source}


def material_of(captions: str, source: Path | None) -> Material:
    """A folder of `prproduct data captions` with features in any layout; or "world", the small embedded one.

    >>> material_of("world", Path("features.h5"))
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: the world has features of its own; leave out --features
    """
    if captions == WORLD:
        if source is not None:
            raise InputError("the world has features of its own; leave out --features")
        world = World()
        return Material(world.captions, world.features)
    if source is None:
        raise InputError("features of the images are needed: give --features, as `prproduct data features` writes them")
    return Material(prepared.read(Path(captions)), features.open(source))
