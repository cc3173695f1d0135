"""The toy world: its sentences are true, its pictures show its scenes, its features come from pixels alone."""

import itertools

import numpy as np
import pytest

from prproduct.captioning.data.vocabulary import UNKNOWN
from prproduct.captioning.scenes import COLOUR_VALUES, COLOURS, GAP, SHAPES, render
from prproduct.captioning.world import Thing, World, is_true, regions_of

WORLD = World(train=120, val=30, test=30)
LEFT, RIGHT = Thing("red", "circle", "small", 0.2, 0.5), Thing("blue", "cross", "large", 0.7, 0.3)


def test_every_reference_is_a_true_sentence_of_known_words_and_no_image_has_one_twice():
    for image in WORLD.captions.images:
        assert len(set(image.references)) == 5
        for sentence, ids in zip(image.references, image.captions, strict=True):
            assert is_true(WORLD.scene(image.id), sentence), sentence
            assert WORLD.captions.vocabulary.decode(ids) == sentence
            assert UNKNOWN not in sentence


def test_references_are_seldom_true_of_other_scenes():
    """Else nothing could be learnt from features."""
    images = WORLD.captions.images
    others = itertools.pairwise(images)
    wrong = [not is_true(WORLD.scene(other.id), sentence) for one, other in others for sentence in one.references]
    assert np.mean(wrong) > 0.95


@pytest.mark.parametrize(
    ("sentence", "truth"),
    [
        ("a red circle", True),
        ("there is a small red circle", True),
        ("this is a large red circle", False),
        ("a red cross", False),
        ("a blue cross in the top right", True),
        ("a blue cross in the top left", False),
        ("a red circle and a blue cross", True),
        ("a red circle and a red circle", False),  # there is one
        ("a blue cross is to the right of a red circle", True),
        ("a blue cross to the left of a red circle", False),
        ("a large blue cross above a small red circle", True),
        ("a blue cross is below a red circle", False),
        ("a red circle to the left of", False),
        ("a red circle is", False),
        ("a red circle is and a blue cross", False),
        ("", False),
    ],
)
def test_sentences_are_true_or_not(sentence, truth):
    assert is_true((LEFT, RIGHT), sentence) == truth
    assert is_true((RIGHT, LEFT), sentence) == truth


def test_all_colours_shapes_and_numbers_of_things_occur_and_things_do_not_touch():
    scenes = [WORLD.scene(image.id) for image in WORLD.captions.images]
    things = [thing for scene in scenes for thing in scene]
    assert {thing.colour for thing in things} == set(COLOURS) == set(COLOUR_VALUES)
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {len(scene) for scene in scenes} == {1, 2, 3}
    for scene in scenes:
        for place, one in enumerate(scene):
            assert GAP <= one.x - one.radius <= one.x + one.radius <= 1 - GAP
            for other in scene[:place]:
                assert max(abs(one.x - other.x), abs(one.y - other.y)) > one.radius + other.radius


def test_a_region_is_found_for_each_thing_where_it_is():
    for image in WORLD.captions.images:
        scene, regions = WORLD.scene(image.id), WORLD.features.of(image.id)
        assert regions.shape == (len(scene) + 1, WORLD.features.width)
        assert regions.dtype == np.float32
        distances = [np.abs(regions[:-1, -4:-2] - [thing.x, thing.y]).max(1) for thing in scene]
        assert np.max(np.min(distances, axis=1)) < 0.03
        assert sorted(np.argmin(distances, axis=1)) == list(range(len(scene)))
        assert regions[-1, -4:].tolist() == [0.5, 0.5, 1.0, 1.0]


def test_features_are_those_of_the_pixels():
    assert np.array_equal(WORLD.features.of(3), regions_of(WORLD.picture(3)))


def test_shapes_and_colours_can_be_told_apart_by_the_features():
    """Nearest of one noise-free example each, by the pixels in the box."""

    def seen(colour, shape, seed):
        return regions_of(render((Thing(colour, shape, "large", 0.4, 0.6),), np.random.default_rng(seed)))[0, :-4]

    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    known = np.array([seen(*kind, 0) for kind in kinds])
    for place, kind in enumerate(kinds):
        assert np.square(known - seen(*kind, 1)).sum(1).argmin() == place


def test_the_same_seed_gives_the_same_world_and_another_seed_another():
    same, other = World(train=120, val=30, test=30), World(train=120, val=30, test=30, seed=1)
    assert same.captions.fingerprint == WORLD.captions.fingerprint
    assert same.features.fingerprint == WORLD.features.fingerprint
    assert np.array_equal(same.picture(5), WORLD.picture(5))
    assert other.captions.fingerprint != WORLD.captions.fingerprint
    assert other.features.fingerprint != WORLD.features.fingerprint


def test_more_training_images_change_no_other_image():
    larger = World(train=150, val=30, test=30)
    for split in ("val", "test"):
        assert larger.captions.of(split) == WORLD.captions.of(split)
    assert larger.captions.of("train")[:120] == WORLD.captions.of("train")


def test_the_splits_share_no_scene():
    scenes = [WORLD.scene(image.id) for image in WORLD.captions.images]
    assert len(set(scenes)) == len(scenes) == 180


@pytest.mark.parametrize("picture", [np.zeros((1, 1, 3), np.uint8), np.full((3, 90, 3), 128, np.uint8)])
def test_a_picture_without_patches_is_one_region(picture):
    regions = regions_of(picture)
    assert regions.shape == (1, 112)
    assert np.isfinite(regions).all()
