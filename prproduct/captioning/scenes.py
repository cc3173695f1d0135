"""Scenes of the toy world: coloured shapes, sentences about them, the truth of a sentence, and rendered pictures."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "cross")
RADII = {"small": 0.09, "large": 0.17}  # in units of the picture's width, as all lengths here
GAP = 0.05  # least distance between two shapes, and to the edge
COLOUR_VALUES = {
    "red": (0.85, 0.15, 0.15),
    "green": (0.15, 0.65, 0.20),
    "blue": (0.15, 0.30, 0.85),
    "yellow": (0.90, 0.80, 0.10),
    "purple": (0.60, 0.20, 0.75),
    "cyan": (0.10, 0.75, 0.80),
}
COLOURS = tuple(COLOUR_VALUES)

SENTENCES = 5  # per scene
CLEAR = 0.12  # two shapes closer than this, along an axis, are not said to be left of or above each other
RELATIONS = {"to the left of": (-1, 0), "to the right of": (1, 0), "above": (0, -1), "below": (0, 1)}
BEGINNINGS = ("", "there is ", "this is ")
CORNERS = {"top left": (-1, -1), "top right": (1, -1), "bottom left": (-1, 1), "bottom right": (1, 1)}

_FUNCTION_WORDS = {word for text in (*BEGINNINGS, *RELATIONS, *CORNERS, "a in the is and") for word in text.split()}
WORDS = (*sorted(_FUNCTION_WORDS), *RADII, *COLOURS, *SHAPES)

_SHAPE = rf"a (?:({'|'.join(RADII)}) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_ONE = re.compile(rf"(?:there is |this is )?{_SHAPE}(?: in the ({'|'.join(CORNERS)}))?")
_TWO = re.compile(rf"{_SHAPE} (and|(?:is )?(?:{'|'.join(RELATIONS)})) {_SHAPE}")

SIDE = 64  # pixels of a picture
SUPERSAMPLING = 2  # subpixels per pixel and axis, for smooth edges


class Thing(NamedTuple):
    """A coloured shape; x grows to the right and y downwards, from 0 to 1."""

    colour: str
    shape: str
    size: str
    x: float
    y: float

    @property
    def radius(self) -> float:
        """Half of its width."""
        return RADII[self.size]


Scene = tuple[Thing, ...]


def draw_scene(generator: np.random.Generator) -> Scene:
    """A random scene of one to three things that do not touch.

    >>> scene = draw_scene(np.random.default_rng(0))
    >>> 1 <= len(scene) <= 3, scene[0].colour in COLOURS
    (True, True)
    """
    things: list[Thing] = []
    count = int(generator.integers(1, 4))
    while len(things) < count:  # terminates: two things leave two corners free for a small one
        size = str(generator.choice(list(RADII)))
        margin = RADII[size] + GAP
        x, y = generator.uniform(margin, 1 - margin, 2).tolist()
        thing = Thing(str(generator.choice(COLOURS)), str(generator.choice(SHAPES)), size, x, y)
        if all(_apart(thing, other) for other in things):
            things.append(thing)
    return tuple(things)


def describe_scene(scene: Scene, generator: np.random.Generator) -> tuple[str, ...]:
    """Five distinct sentences that are true of a scene.

    >>> scene = (Thing("red", "circle", "small", 0.2, 0.3),)
    >>> sentences = describe_scene(scene, np.random.default_rng(0))  # such as "there is a red circle in the top left"
    >>> len(set(sentences)), all(is_true(scene, sentence) for sentence in sentences)
    (5, True)
    """
    sentences = _sentences_of_one(scene[0]) if len(scene) == 1 else _sentences_of_two(scene)
    chosen = generator.choice(len(sentences), SENTENCES, replace=False)
    return tuple(sentences[index] for index in chosen)


def is_true(scene: Scene, sentence: str) -> bool:
    """True if a sentence has the grammar of `describe_scene` and is true of the scene.

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
    x, y = RELATIONS.get(groups[3].removeprefix("is "), (0, 0))  # "and" says nothing about positions
    return any(
        _is(one, *groups[:3]) and _is(other, *groups[4:]) and (one.x - other.x) * x >= 0 and (one.y - other.y) * y >= 0
        for one, other in itertools.permutations(scene, 2)
    )


def render(scene: Scene, generator: np.random.Generator) -> NDArray[np.uint8]:
    """A picture (64, 64, 3) of a scene, with random lighting, colour variation and noise.

    >>> picture = render((Thing("red", "square", "large", 0.5, 0.5),), np.random.default_rng(0))
    >>> picture.shape, bool(picture[32, 32, 0] > 2 * picture[32, 32, 1])
    ((64, 64, 3), True)
    """
    side = SIDE * SUPERSAMPLING
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    slope = generator.uniform(-0.1, 0.1, 2)
    light = generator.uniform(0.75, 0.95) + slope[0] * (x - 0.5) + slope[1] * (y - 0.5)
    canvas = np.repeat(light[..., None], 3, axis=2)
    for thing in scene:
        shade = np.array(COLOUR_VALUES[thing.colour]) + generator.uniform(-0.06, 0.06, 3)
        canvas[_covers(thing, x, y)] = shade
    canvas = canvas.reshape(SIDE, SUPERSAMPLING, SIDE, SUPERSAMPLING, 3).mean((1, 3))
    canvas += generator.normal(0, 0.03, canvas.shape)
    return (canvas.clip(0, 1) * 255).round().astype(np.uint8)


def _apart(one: Thing, other: Thing) -> bool:
    return max(abs(one.x - other.x), abs(one.y - other.y)) > one.radius + other.radius + GAP


def _sentences_of_one(thing: Thing) -> list[str]:
    """All sentences about a single thing."""
    short, full = _names(thing)
    corners = [f" in the {name}" for name, where in CORNERS.items() if _lies(thing, *where, CLEAR / 2)]
    return [f"{begin}{name}{end}" for begin in BEGINNINGS for name in (short, full) for end in ("", *corners)]


def _sentences_of_two(scene: Scene) -> list[str]:
    """All sentences about the first two things, in either order."""
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
    """True if a thing is at least `distance` from the centre in the directions x and y, each 1 or −1."""
    return (thing.x - 0.5) * x >= distance and (thing.y - 0.5) * y >= distance


def _covers(thing: Thing, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True at the points that a thing covers."""
    across, down = (x - thing.x) / thing.radius, (y - thing.y) / thing.radius
    away = np.maximum(abs(across), abs(down))
    if thing.shape == "circle":
        return across**2 + down**2 <= 1
    if thing.shape == "square":
        return away <= 0.9
    if thing.shape == "triangle":
        return (2 * abs(across) <= down + 1) & (down <= 1)
    return (away <= 1) & (np.minimum(abs(across), abs(down)) <= 0.35)  # a cross
