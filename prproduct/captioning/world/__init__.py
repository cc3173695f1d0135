"""A small world without any download: coloured shapes, drawn, described in templated sentences, and seen."""

from prproduct.captioning.world.scenes import Scene, Thing
from prproduct.captioning.world.sentences import is_true
from prproduct.captioning.world.world import World

__all__ = ["Scene", "Thing", "World", "is_true"]
