"""The data sets themselves: real files where they are there, their means and deviations, and the embedded digits."""

import os
from pathlib import Path

import pytest
import torch

from prproduct.classification.data import dataset, load, locate, sources
from prproduct.classification.data.dataset import channel_statistics
from prproduct.lab.errors import InputError


def real(name):
    """The data set from PRPRODUCT_DATA or from where the system has it; nothing is fetched."""
    if os.environ.get("PRPRODUCT_DATA") is None and name.startswith("cifar"):
        pytest.skip(f"needs {name} in the folder named by PRPRODUCT_DATA")
    if sources.SOURCES[name].layouts and locate.find(sources.SOURCES[name]) is None:
        pytest.skip(f"{name} is in none of {[str(root) for root in locate.roots()]}")
    return load(name, download=False)


@pytest.mark.parametrize("name", sources.SOURCES)
def test_mean_and_deviation_are_those_of_the_training_set(name):
    data = real(name)
    mean, std = channel_statistics(data.train_images, data.levels)
    tolerance = 1e-8 if name == "cifar100" else 1e-15
    assert mean == pytest.approx(data.mean, abs=tolerance)
    assert std == pytest.approx(data.std, abs=tolerance)


@pytest.mark.parametrize("name", sources.SOURCES)
def test_the_real_data_has_its_counts_and_fingerprint(name):
    data, source = real(name), sources.SOURCES[name]
    assert data.train_images.shape == (source.train_count, *source.shape)
    assert data.test_images.shape == (source.test_count, *source.shape)
    assert set(data.train_labels.tolist()) == set(data.test_labels.tolist()) == set(range(source.classes))
    assert data.fingerprint == source.fingerprint
    if name != "digits":
        counts = torch.bincount(data.train_labels)
        assert (counts == source.train_count // source.classes).all()


def test_the_widespread_deviation_of_cifar10_is_the_mean_of_the_images_own():
    data = real("cifar10")
    own = data.train_images.float().div_(255).flatten(2).std(dim=2).mean(dim=0)
    assert own.tolist() == pytest.approx(sources.WIDESPREAD_STD, abs=1e-4)


def test_digits_need_no_files_and_are_split_by_class(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "SYSTEM", tmp_path)
    data = load("digits")
    assert data.train_images.dtype == torch.uint8
    assert data.train_images.max() == data.levels == 16
    train, test = (torch.bincount(labels) for labels in (data.train_labels, data.test_labels))
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.equal(test, (train + test) // 5)


def test_statistics_are_exact_where_float32_sums_are_not():
    images = torch.zeros(3, 2, 1000, 1000, dtype=torch.uint8)
    images[:, 1] = 255
    images[0, 0, 0, 0] = 51
    mean, std = channel_statistics(images)
    assert mean == (0.2 / 3e6, 1.0)
    assert std == pytest.approx((0.2 * (1 / 3e6 * (1 - 1 / 3e6)) ** 0.5, 0.0), rel=1e-14)


def test_the_fingerprint_knows_every_part():
    tensors = [torch.arange(4, dtype=torch.uint8), torch.arange(2)]
    prints = {
        dataset.fingerprint("a", *tensors),
        dataset.fingerprint("b", *tensors),
        dataset.fingerprint("a", tensors[0].reshape(2, 2), tensors[1]),
        dataset.fingerprint("a", tensors[0].flip(0), tensors[1]),
        dataset.fingerprint("a", tensors[0], tensors[1].flip(0)),
    }
    assert len(prints) == 5
    assert dataset.fingerprint("a", tensors[0].flip(0).flip(0), tensors[1]) in prints


def test_normalisation_is_true_unless_asked_for(monkeypatch):
    source = sources.SOURCES["cifar10"]
    assert dataset._normalisation(source, "true") == (source.mean, source.std)
    assert dataset._normalisation(source, "widespread")[1] == (0.2023, 0.1994, 0.2010)
    for name, normalisation, line in (("digits", "widespread", "is for cifar10"), ("digits", "none", "is not known")):
        with pytest.raises(InputError, match=line):
            load(name, normalisation=normalisation)


def test_nothing_of_the_data_is_in_the_package():
    package = Path(dataset.__file__).parents[2]
    assert not [path for path in package.rglob("*") if path.suffix in (".gz", ".bin", ".npz", ".pkl")]
