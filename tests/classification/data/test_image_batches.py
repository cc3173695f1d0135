"""Splits, order and augmentation: reproducible, resumable, and the same however many processes share the work."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prproduct.classification.data import Dataset, EvaluationBatches, TrainingBatches, split
from prproduct.classification.data.batches import Augmentation, normalise
from prproduct.lab.errors import InputError
from prproduct.lab.seeds import keyed_bits


@pytest.fixture
def data():
    """103 images of 3×32×32 in 7 classes of different sizes, and 11 to test on."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (114, 3, 32, 32), dtype=torch.uint8, generator=random)
    labels = torch.arange(114).remainder(10).clamp(max=6)
    means = (0.5, 0.4, 0.3), (0.25, 0.2, 0.5)
    return Dataset("noise", images[:103], labels[:103], images[103:], labels[103:], 7, *means, "0")


def batches(data, **settings):
    settings = {"batch_size": 16, "seed": 5, "augment": True} | settings
    return TrainingBatches(data, torch.arange(103), **settings)


def same(first, second):
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(first, second, strict=True))


def test_keyed_bits_depend_on_every_part_of_the_key_and_on_the_index_alone():
    indices = np.arange(1000)
    bits = keyed_bits(indices, 3, 5)
    assert len({*bits.tolist()}) == 1000
    np.testing.assert_array_equal(keyed_bits(indices[::-7], 3, 5), bits[::-7])
    for key in ((3, 6), (4, 5), (5, 3), (3, 5, 0), (3,), (-3, 5), (3 + 2**32, 5)):
        assert not (keyed_bits(indices, *key) == bits).any()


def test_keyed_bits_are_even():
    bits = keyed_bits(np.arange(100_000), 0, 0)
    ones = [(bits >> np.uint64(place) & np.uint64(1)).mean() for place in range(64)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / np.sqrt(100_000)


def test_crops_and_flips_are_spread_evenly_and_independently():
    drawn = Augmentation.of_epoch(200_000, seed=1, epoch=2)
    cells = torch.bincount((drawn.row * 9 + drawn.column) * 2 + drawn.flip, minlength=162)
    assert len(cells) == 162
    expected = 200_000 / 162
    chi_square = ((cells - expected) ** 2 / expected).sum().item()
    assert chi_square < 161 + 5 * (2 * 161) ** 0.5


def test_a_crop_is_the_window_of_the_padded_image_and_a_flip_its_mirror(data):
    images, indices = data.train_images, torch.arange(103)
    drawn = Augmentation.of_epoch(103, seed=0, epoch=0)
    augmented = drawn(images, indices)
    padded = torch.zeros(103, 3, 40, 40, dtype=torch.uint8)
    padded[:, :, 4:36, 4:36] = images
    for number in range(103):
        row, column = drawn.row[number], drawn.column[number]
        window = padded[number, :, row : row + 32, column : column + 32]
        assert torch.equal(augmented[number], window.flip(-1) if drawn.flip[number] else window)
    assert drawn.flip.any()
    assert not drawn.flip.all()


def test_every_epoch_and_seed_augments_anew():
    first, *others = (Augmentation.of_epoch(1000, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0)))
    for other in others:
        assert 0.05 < (first.row == other.row).float().mean() < 0.18  # 1/9 by chance
        assert 0.4 < (first.flip == other.flip).float().mean() < 0.6


def test_two_processes_with_half_batches_see_what_one_sees_with_whole_ones(data):
    for epoch in (0, 3):
        whole = list(batches(data).epoch(epoch))
        halves = [list(batches(data, rank=rank, world_size=2).epoch(epoch)) for rank in (0, 1)]
        assert len(whole) == len(halves[0]) == len(halves[1]) == 7
        for one, left, right in zip(whole, *halves, strict=True):
            assert torch.equal(one.images, torch.cat((left.images, right.images)))
            assert torch.equal(one.labels, torch.cat((left.labels, right.labels)))
            assert one.global_size == left.global_size == right.global_size == len(one.images)
            assert 0 <= len(left.images) - len(right.images) <= 1


def test_an_image_is_augmented_alike_whatever_the_batch_size(data):
    found = {}
    for size in (16, 50):
        training = batches(data, batch_size=size)
        images = torch.cat([batch.images for batch in training.epoch(1)])
        found[size] = dict(zip(training.order(1).tolist(), images, strict=True))
    assert all(torch.equal(found[16][index], found[50][index]) for index in range(103))


def test_an_epoch_goes_on_from_any_step(data):
    everything = list(batches(data).epoch(4))
    for start in range(8):
        rest = list(batches(data).epoch(4, start_step=start))
        assert len(rest) == 7 - start
        assert all(same(a, b) for a, b in zip(everything[start:], rest, strict=True))


def test_random_numbers_drawn_elsewhere_change_nothing(data):
    first = list(batches(data).epoch(0))
    torch.manual_seed(99)
    np.random.seed(99)
    assert all(same(a, b) for a, b in zip(first, batches(data).epoch(0), strict=True))


def test_every_image_comes_once_an_epoch_in_another_order(data):
    orders = [batches(data).order(epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(103)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert batches(data, seed=6).order(0).tolist() != orders[0]


def test_only_the_given_images_come_with_their_labels(data):
    given = torch.arange(0, 103, 3)
    training = TrainingBatches(data, given, batch_size=8, seed=0)
    order = training.order(0)
    assert sorted(order) == given.tolist()
    seen = list(training.epoch(0))
    assert torch.equal(torch.cat([b.labels for b in seen]), data.train_labels[order])
    expected = normalise(data.train_images[order], data.mean, data.std)
    assert torch.equal(torch.cat([b.images for b in seen]), expected)


def test_the_last_batch_is_smaller(data):
    assert [len(b.images) for b in batches(data).epoch(0)] == [16] * 6 + [7]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"batch_size": 1, "world_size": 2}, "a batch of 1 images cannot be shared by 2 processes"),
        ({"batch_size": 0}, "a batch of 0 images"),
        ({"batch_size": 17, "world_size": 2}, "the last batch of an epoch has 1 images for 2 processes"),
    ],
)
def test_batches_that_cannot_be_are_one_line(data, settings, line):
    with pytest.raises(InputError, match=line):
        batches(data, **settings)


def test_no_images_to_train_on_is_one_line(data):
    with pytest.raises(InputError, match="no images to train on"):
        TrainingBatches(data, torch.arange(0), batch_size=8, seed=0)


def test_normalise_gives_mean_0_and_deviation_1(data):
    from prproduct.classification.data.dataset import channel_statistics

    images = normalise(data.train_images, *channel_statistics(data.train_images))
    assert images.dtype == torch.float32
    flat = images.double().transpose(0, 1).flatten(1)
    assert flat.mean(1).abs().max() < 1e-6
    assert (flat.std(1, correction=0) - 1).abs().max() < 1e-6
    assert torch.equal(
        normalise(torch.full((1, 1, 1, 1), 16, dtype=torch.uint8), (0.0,), (1.0,), 16), torch.ones(1, 1, 1, 1)
    )


def test_evaluation_sees_every_image_once_in_order_and_not_augmented(data):
    for world_size in (1, 2, 3, 20):
        ranks = [
            EvaluationBatches.of_test(data, batch_size=4, rank=r, world_size=world_size) for r in range(world_size)
        ]
        seen = [batch for rank in ranks for batch in rank]
        assert torch.equal(torch.cat([b.labels for b in seen]), data.test_labels)
        expected = normalise(data.test_images, data.mean, data.std)
        assert torch.equal(torch.cat([b.images for b in seen]), expected)
        assert {b.global_size for b in seen} == {11}
    held = torch.tensor([5, 9, 100])
    (batch,) = EvaluationBatches.of_training(data, held)
    assert torch.equal(batch.labels, data.train_labels[held])


def test_a_split_holds_out_the_same_share_of_every_class(data):
    parts = split(data)
    assert len(parts.validation) == 10
    assert torch.equal(torch.cat((parts.train, parts.validation)).sort().values, torch.arange(103))
    counts = torch.bincount(data.train_labels)
    held = torch.bincount(data.train_labels[parts.validation], minlength=7)
    assert ((held - 0.1 * counts).abs() < 1).all()


def test_every_split_holds_out_the_same_images_and_not_the_first(data):
    held = split(data).validation
    assert torch.equal(split(data).validation, held)
    assert not torch.equal(held, torch.arange(len(held)))


def test_the_papers_protocol_trains_on_everything(data):
    parts = split(data, "paper")
    assert torch.equal(parts.train, torch.arange(103))
    assert len(parts.validation) == 0


class Transfers(TorchDispatchMode):
    """Operations that copy to another device or read a number off it: a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {t.device for t in tree_leaves((args, result)) if isinstance(t, torch.Tensor)}
        if len(devices) > 1 or "_local_scalar_dense" in str(func):
            self.names.append(str(func))
        return result


def test_no_batch_but_the_first_of_an_epoch_waits_for_its_device(data):
    """The meta device stands for a GPU: data, order and augmentation lie on it."""
    batches = TrainingBatches(data, torch.arange(100), batch_size=16, seed=0, augment=True, device="meta")
    with Transfers() as transfers:
        epoch = batches.epoch(0)
        first = next(epoch)
        assert transfers.names  # the order of the epoch, and its augmentation
        transfers.names.clear()
        second = next(epoch)
    assert first.images.device.type == second.images.device.type == "meta"
    assert not transfers.names
