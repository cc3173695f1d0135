"""The learning rate of every epoch, and recipes that cannot be."""

from dataclasses import replace

import pytest

from prproduct.classification.recipes import MLP, PAPER, learning_rate, recipe
from prproduct.lab.errors import InputError


def rates(stretches):
    """[(epochs, rate), …] as one rate per epoch."""
    return [rate for epochs, rate in stretches for _ in range(epochs)]


@pytest.mark.parametrize(
    ("arch", "stretches"),
    [
        ("resnet110", [(1, 0.01), (80, 0.1), (41, 0.01), (42, 0.001)]),
        ("preresnet110", [(1, 0.01), (80, 0.1), (41, 0.01), (42, 0.001)]),
        ("wrn-28-10", [(1, 0.01), (59, 0.1), (60, 0.02), (40, 0.004), (40, 0.0008)]),
        ("densenet-bc-100-12", [(1, 0.01), (149, 0.1), (75, 0.01), (75, 0.001)]),
    ],
)
@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_rate_of_every_epoch_of_the_papers_recipes(arch, data, stretches):
    chosen = recipe(arch, data)
    assert [learning_rate(chosen, epoch) for epoch in range(chosen.epochs)] == pytest.approx(
        rates(stretches), rel=1e-12
    )
    assert chosen.epochs == sum(epochs for epochs, _ in stretches)


@pytest.mark.parametrize(
    ("arch", "epochs", "batch_size", "weight_decay"),
    [
        ("resnet110", 164, 128, 1e-4),
        ("preresnet110", 164, 128, 1e-4),
        ("wrn-28-10", 200, 128, 5e-4),
        ("densenet-bc-100-12", 300, 64, 1e-4),
    ],
)
def test_the_rest_of_the_papers_recipes(arch, epochs, batch_size, weight_decay):
    chosen = recipe(arch, "cifar100")
    assert (chosen.epochs, chosen.batch_size, chosen.weight_decay) == (epochs, batch_size, weight_decay)
    assert (chosen.optimizer, chosen.momentum, chosen.augment) == ("sgd", 0.9, True)


@pytest.mark.parametrize(
    ("epochs", "stretches"),
    [
        (8, [(1, 0.01), (3, 0.1), (2, 0.01), (2, 0.001)]),
        (82, [(1, 0.01), (40, 0.1), (20, 0.01), (21, 0.001)]),
        (3, [(1, 0.01), (1, 0.01), (1, 0.001)]),
        (1, [(1, 0.01)]),
        (328, [(1, 0.01), (161, 0.1), (82, 0.01), (84, 0.001)]),
    ],
)
def test_scaling_keeps_the_milestones_shares(epochs, stretches):
    scaled = recipe("resnet110", "cifar10").scaled(epochs)
    assert scaled.epochs == epochs
    assert [learning_rate(scaled, epoch) for epoch in range(epochs)] == pytest.approx(rates(stretches), rel=1e-12)


def test_scaling_to_its_own_epochs_changes_nothing():
    for known in (*PAPER.values(), *MLP.values()):
        assert known.scaled(known.epochs) == known


@pytest.mark.parametrize("data", ["digits", "fashion-mnist"])
def test_images_of_digits_and_clothes_are_not_flipped(data):
    assert not recipe("resnet20", data).augment
    assert not recipe("mlp", data).augment


def test_a_vit_trains_by_adam_and_on_augmented_images_of_cifar():
    own = recipe("vit-6-128", "cifar10")
    assert (own.optimizer, own.learning_rate, own.augment) == ("adam", 1e-3, True)
    assert not recipe("vit-1-64", "digits").augment


def test_the_mlp_has_recipes_of_its_own():
    assert recipe("mlp", "digits") == MLP["digits"]
    assert recipe("mlp-3-100", "fashion-mnist") == recipe("mlp", "cifar10") == MLP["fashion-mnist"]
    assert {learning_rate(MLP["fashion-mnist"], epoch) for epoch in range(10)} == {0.01}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"epochs": 0}, "epochs is 0, it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, it must be a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"weight_decay": -1e-4}, "weight_decay is -0.0001"),
        ({"momentum": float("nan")}, "momentum is nan"),
        ({"momentum": float("inf")}, "momentum is inf"),
        ({"weight_decay": float("inf")}, "weight_decay is inf"),
        ({"milestones": (122, 81)}, "milestones are .*, they must ascend"),
        ({"milestones": (0, 81)}, "milestones are .*, they must ascend from 1"),
        ({"optimizer": "lion"}, "optimizer 'lion' is not known; there are sgd, adam"),
    ],
)
def test_a_recipe_that_cannot_be_is_one_line(change, line):
    with pytest.raises(InputError, match=line):
        replace(PAPER["resnet"], **change)
