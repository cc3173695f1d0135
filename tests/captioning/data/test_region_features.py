"""Features in every layout: read as they are, told apart, and refused in one line with the image's id."""

import base64
import multiprocessing
import os
import pickle

import h5py
import numpy as np
import pytest

from prproduct.captioning.data import features
from prproduct.captioning.data.batches import collate
from prproduct.lab.errors import InputError

REGIONS = {7: 3, 391895: 1, 12: 5}
ARRAYS = {image: np.random.default_rng(image).random((regions, 6), np.float32) for image, regions in REGIONS.items()}


def npz_folder(path, key="feat"):
    path.mkdir()
    for image, array in ARRAYS.items():
        np.savez_compressed(path / f"{image}.npz", **{key: array})
    return path


def npz_folder_z(path):
    return npz_folder(path, "z")


def npy_folder(path):
    path.mkdir()
    for image, array in ARRAYS.items():
        np.save(path / f"{image}.npy", array)
    return path


def npz_folder_coco_names(path):
    path.mkdir()
    for image, array in ARRAYS.items():
        np.savez(path / f"COCO_val2014_{image:012d}.npz", feat=array)
    return path


def tsv_line(image, array):
    boxes = np.zeros((len(array), 4), np.float32)
    encoded = (base64.b64encode(np.ascontiguousarray(values).tobytes()).decode() for values in (boxes, array))
    return "\t".join([str(image), "640", "480", str(len(array)), *encoded]) + "\n"


def tsv(path):
    path = path.with_suffix(".tsv")
    path.write_text("".join(tsv_line(*item) for item in ARRAYS.items()))
    return path


def tsv_folder(path):
    path.mkdir()
    for number, item in enumerate(ARRAYS.items()):
        (path / f"train.tsv.{number}").write_text(tsv_line(*item))
    return path


def hdf5(path, suffix="_features", dtype=np.float32):
    path = path.with_suffix(".hdf5")
    with h5py.File(path, "w") as file:
        for image, array in ARRAYS.items():
            file[f"{image}{suffix}"] = array.astype(dtype)
            file[f"{image}_boxes"] = np.zeros((len(array), 4))
    return path


def hdf5_plain(path):
    return hdf5(path, "")


LAYOUTS = [npz_folder, npz_folder_z, npz_folder_coco_names, npy_folder, tsv, tsv_folder, hdf5, hdf5_plain]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.__name__)
def path(request, tmp_path):
    return request.param(tmp_path / "features")


def test_every_layout_gives_the_same_arrays_ids_and_fingerprint(path, tmp_path):
    opened, expected = features.open(path), features.open(npz_folder(tmp_path / "other"))
    assert sorted(opened.ids) == sorted(ARRAYS)
    for image, array in ARRAYS.items():
        assert opened.of(image).dtype == np.float32
        assert np.array_equal(opened.of(image), array)
        assert np.array_equal(opened.of(str(image)), array)
    assert opened.width == 6
    assert opened.fingerprint == expected.fingerprint


def test_a_missing_image_stops_with_its_id(path):
    opened = features.open(str(path))
    assert 8 not in opened
    assert 7 in opened
    with pytest.raises(InputError, match="no features of image 8; it has 3 images"):
        opened.of(8)


def _read_in_child(opened, image, sender):
    try:
        array = opened.of(image)
        own = not isinstance(opened, features.Hdf5) or opened._open[0] == os.getpid()
        sender.send(array if own else RuntimeError("read through the parent's handle"))
    except BaseException as error:
        sender.send(error)


@pytest.mark.parametrize("layout", [npz_folder, tsv, hdf5], ids=lambda layout: layout.__name__)
def test_forked_processes_read_what_was_opened_here(layout, tmp_path):
    opened = features.open(layout(tmp_path / "features"))
    opened.of(7)
    context = multiprocessing.get_context("fork")
    for image in (12, 391895):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_read_in_child, args=(opened, image, sender))
        child.start()
        opened.of(7)
        assert np.array_equal(receiver.recv(), ARRAYS[image])
        child.join()


def test_a_file_is_opened_once_in_a_process(tmp_path):
    opened = features.open(hdf5(tmp_path / "features"))
    opened.of(7)
    first = opened._open
    opened.of(12)
    assert opened._open is first
    sent = pickle.loads(pickle.dumps(opened))  # as to a process that was not forked
    assert sent._open is None
    assert np.array_equal(sent.of(12), ARRAYS[12])


def test_a_grid_is_its_cells_and_a_vector_one_region(tmp_path):
    grid = np.arange(2 * 3 * 6, dtype=np.float32).reshape(2, 3, 6)
    np.savez(tmp_path / "1.npz", feat=grid)
    np.save(tmp_path / "2.npy", grid[0, 0])
    opened = features.open(tmp_path)
    assert np.array_equal(opened.of(1), grid.reshape(6, 6))
    assert np.array_equal(opened.of(2), grid[0, :1])


def test_float16_is_read_as_float32(tmp_path):
    opened = features.open(hdf5(tmp_path / "features", dtype=np.float16))
    assert np.array_equal(opened.of(7), ARRAYS[7].astype(np.float16).astype(np.float32))


def test_another_value_or_another_image_is_another_fingerprint(tmp_path):
    first = features.open(npy_folder(tmp_path / "a")).fingerprint
    np.save(tmp_path / "a" / "12.npy", ARRAYS[12] + 1)
    second = features.open(tmp_path / "a").fingerprint
    np.save(tmp_path / "a" / "13.npy", ARRAYS[12])
    assert len({first, second, features.open(tmp_path / "a").fingerprint}) == 3


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.zeros((3, 5), np.float32), "image 99 has features of width 5, others 6"),
        (np.full((3, 6), np.nan, np.float32), "image 99 cannot be read: values that are not finite"),
        (np.zeros((0, 6), np.float32), "image 99 cannot be read: an array of float32 and shape"),
        (np.array(3.0), "image 99 cannot be read: an array of float64 and shape"),
        (np.array([["a"] * 6]), "image 99 cannot be read: an array of <U1"),
        (np.array([None]), "image 99 cannot be read: .*allow_pickle"),
    ],
)
def test_features_that_cannot_be_used_stop_with_the_id(tmp_path, array, line):
    path = npy_folder(tmp_path / "features")
    np.save(path / "99.npy", array)
    with pytest.raises(InputError, match=line):
        features.open(path).of(99)


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_file_that_was_cut_short_is_named(tmp_path, keep):
    path = npz_folder(tmp_path / "features")
    (path / "12.npz").write_bytes((path / "12.npz").read_bytes()[:keep])
    with pytest.raises(InputError, match="features of image 12 cannot be read") as error:
        features.open(path).of(12)
    assert len(str(error.value).splitlines()) == 1


def test_an_archive_without_features_says_what_it_has(tmp_path):
    path = npz_folder(tmp_path / "features")
    np.savez(path / "99.npz", boxes=ARRAYS[7])
    with pytest.raises(InputError, match=r"image 99 cannot be read: 99\.npz has no array 'feat' or 'z', but boxes"):
        features.open(path).of(99)


@pytest.mark.parametrize("cut", [2, 40, 400])
def test_a_line_of_a_table_that_was_cut_short_is_named(tmp_path, cut):
    path = tsv(tmp_path / "features")
    path.write_bytes(path.read_bytes()[: -min(cut, len(tsv_line(12, ARRAYS[12])) - 5)].rstrip(b"="))
    opened = features.open(path)
    assert np.array_equal(opened.of(7), ARRAYS[7])
    with pytest.raises(InputError, match="features of image 12 cannot be read") as error:
        opened.of(12)
    assert len(str(error.value).splitlines()) == 1


def test_of_an_image_that_is_twice_in_tables_the_first_counts(tmp_path):
    path = tsv(tmp_path / "features")
    path.write_text(path.read_text() + tsv_line(7, ARRAYS[12]) + "\n")
    assert np.array_equal(features.open(path).of(7), ARRAYS[7])


def test_two_files_of_one_image_are_refused(tmp_path):
    path = npy_folder(tmp_path / "features")
    np.savez(path / "COCO_train2014_000000000007.npz", feat=ARRAYS[7])
    with pytest.raises(InputError, match=r"7\.npy and COCO_train2014_000000000007\.npz are both of image 7"):
        features.open(path)


def test_a_place_without_features_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        features.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("features")
    hdf5(tmp_path / "cut")
    whole = (tmp_path / "cut.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.tsv").write_text("\n")
    for name in ("empty", "note.txt", "cut.hdf5", "empty.tsv"):
        with pytest.raises(InputError, match=f"{name}: .*give a folder of .npz") as error:
            features.open(tmp_path / name)
        assert len(str(error.value).splitlines()) == 1


def test_a_damaged_hdf5_file_is_one_line(tmp_path):
    path = hdf5(tmp_path / "damaged")
    whole = path.read_bytes()
    assert whole.count(b"HEAP")
    path.write_bytes(whole.replace(b"HEAP", b"PEAH"))
    with pytest.raises(InputError, match=r"damaged\.hdf5: cannot be read as features"):
        features.open(path)


def test_padding_is_zero_and_not_present():
    regions = collate([ARRAYS[7], ARRAYS[391895], ARRAYS[12]])
    assert regions.features.shape == (3, 5, 6)
    assert regions.present.sum(1).tolist() == [3, 1, 5]
    assert regions.features[~regions.present].abs().sum() == 0
    assert np.array_equal(regions.features[regions.present].numpy(), np.concatenate([*ARRAYS.values()]))


@pytest.mark.parametrize("shapes", [[], [(3, 6), (3, 5)], [(0, 6)], [(6,)]])
def test_a_batch_that_cannot_be_is_refused(shapes):
    with pytest.raises(InputError):
        collate([np.zeros(shape, np.float32) for shape in shapes])
