"""What is said about a scene, and whether a sentence is true of it."""

from __future__ import annotations

import itertools
import re

import numpy as np

from prproduct.captioning.world.scenes import COLOURS, RADII, SHAPES, Scene, Thing

REFERENCES = 5
CLEAR = 0.12  # of the picture's width: what is nearer is not called left, or above
RELATIONS = {"to the left of": (-1, 0), "to the right of": (1, 0), "above": (0, -1), "below": (0, 1)}
BEGINNINGS = ("", "there is ", "this is ")
CORNERS = {"top left": (-1, -1), "top right": (1, -1), "bottom left": (-1, 1), "bottom right": (1, 1)}

_FUNCTION_WORDS = {word for text in (*BEGINNINGS, *RELATIONS, *CORNERS, "a in the is and") for word in text.split()}
WORDS = (*sorted(_FUNCTION_WORDS), *RADII, *COLOURS, *SHAPES)

_THING = rf"a (?:({'|'.join(RADII)}) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_ONE = re.compile(rf"(?:there is |this is )?{_THING}(?: in the ({'|'.join(CORNERS)}))?")
_TWO = re.compile(rf"{_THING} (?:is )?(and|{'|'.join(RELATIONS)}) {_THING}")


def describe(scene: Scene, generator: np.random.Generator) -> tuple[str, ...]:
    """Five different true sentences.

    >>> scene = (Thing("red", "circle", "small", 0.2, 0.3),)
    >>> sentences = describe(scene, np.random.default_rng(0))  # such as "there is a red circle in the top left"
    >>> len(set(sentences)), all(is_true(scene, sentence) for sentence in sentences)
    (5, True)
    """
    sentences = _of_one(scene[0]) if len(scene) == 1 else _of_two(scene)
    chosen = generator.choice(len(sentences), REFERENCES, replace=False)
    return tuple(sentences[place] for place in chosen)


def is_true(scene: Scene, sentence: str) -> bool:
    """Whether a sentence is one of this world's, and true of the scene.

    >>> scene = Thing("red", "circle", "small", 0.2, 0.3), Thing("blue", "square", "large", 0.7, 0.4)
    >>> is_true(scene, "a red circle to the left of a large blue square"), is_true(scene, "a red square")
    (True, False)
    """
    match = _ONE.fullmatch(sentence)
    if match:
        *kind, corner = match.groups()
        return any(_is(thing, *kind) and (corner is None or _lies(thing, *CORNERS[corner])) for thing in scene)
    match = _TWO.fullmatch(sentence)
    if not match:
        return False
    groups = match.groups()
    x, y = RELATIONS.get(groups[3], (0, 0))
    return any(
        _is(one, *groups[:3]) and _is(other, *groups[4:]) and (one.x - other.x) * x >= 0 and (one.y - other.y) * y >= 0
        for one, other in itertools.permutations(scene, 2)
    )


def _of_one(thing: Thing) -> list[str]:
    """All sentences about a thing alone."""
    short, full = _names(thing)
    corners = [f" in the {name}" for name, where in CORNERS.items() if _lies(thing, *where, CLEAR / 2)]
    return [f"{begin}{name}{end}" for begin in BEGINNINGS for name in (short, full) for end in ("", *corners)]


def _of_two(scene: Scene) -> list[str]:
    """Sentences about the first thing and another, in either order."""
    sentences = []
    for one, other in ((scene[0], scene[1]), (scene[1], scene[0])):
        clear = [name for name, (x, y) in RELATIONS.items() if (one.x - other.x) * x + (one.y - other.y) * y > CLEAR]
        for word in (*(f"is {name}" for name in clear), *clear, "and"):
            sentences += [f"{a} {word} {b}" for a, b in zip(_names(one), _names(other), strict=True)]
    return sentences


def _names(thing: Thing) -> tuple[str, str]:
    return f"a {thing.colour} {thing.shape}", f"a {thing.size} {thing.colour} {thing.shape}"


def _is(thing: Thing, size: str | None, colour: str, shape: str) -> bool:
    return (thing.colour, thing.shape) == (colour, shape) and size in (None, thing.size)


def _lies(thing: Thing, x: int, y: int, distance: float = 0.0) -> bool:
    return (thing.x - 0.5) * x >= distance and (thing.y - 0.5) * y >= distance
