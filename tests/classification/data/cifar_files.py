"""Files in the formats of CIFAR, written as its authors' Python 2 wrote them, and sources that expect them."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np

from prproduct.classification.data.sources import CIFAR10, CIFAR100, FASHION_MNIST, File, Layout


def images(count, classes, seed=0):
    """Images (count, 3, 32, 32), fine labels of which each class has one, and coarse labels."""
    random = np.random.default_rng(seed)
    fine = random.permutation(np.arange(count) % classes)
    return random.integers(0, 256, (count, 3, 32, 32), np.uint8), fine, fine // 5


def py2(value):
    """The opcodes of Python 2's pickle protocol 2 for a value: strings are BINSTRING, arrays those of numpy 1."""
    if isinstance(value, bytes):
        return (
            b"U" + struct.pack("<B", len(value)) if len(value) < 256 else b"T" + struct.pack("<I", len(value))
        ) + value
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"K" + struct.pack("<B", value) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(py2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(py2(key) + py2(item) for key, item in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(map(py2, value.shape)) + b"t"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + py2(value.tobytes()) + b"tb"


def pickled(batch):
    return b"\x80\x02" + py2(batch) + b"."


def cifar100_pickle(pixels, fine, coarse):
    names = [f"picture_{number}.png".encode() for number in range(len(fine))]
    data = pixels.reshape(len(fine), -1)
    batch = {b"filenames": names, b"batch_label": b"training batch 1 of 1"}
    return pickled(batch | {b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist(), b"data": data})


def cifar10_pickle(pixels, labels):
    batch = {b"batch_label": b"training batch 1 of 5", b"labels": labels.tolist()}
    return pickled(batch | {b"data": pixels.reshape(len(labels), -1), b"filenames": [b"a.png"] * len(labels)})


def cifar100_binary(pixels, fine, coarse):
    return b"".join(bytes([c, f]) + p.tobytes() for p, f, c in zip(pixels, fine, coarse, strict=True))


def cifar10_binary(pixels, labels):
    return b"".join(bytes([label]) + p.tobytes() for p, label in zip(pixels, labels, strict=True))


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def official(contents):
    return tuple(File(name, hashlib.md5(content).hexdigest()) for name, content in contents.items())


def put(folder, contents, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


def tar_gz(folder, contents):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def with_files(source, contents_of_layouts, train, test):
    """A source whose official files are these: for each of its layouts (training files, test files)."""
    layouts = tuple(
        Layout(layout.read, layout.folders, official(training), official(testing), layout.archive)
        for layout, (training, testing) in zip(source.layouts, contents_of_layouts, strict=True)
    )
    return replace(source, layouts=layouts, train_count=train, test_count=test, fingerprint="")


def small_cifar100():
    """CIFAR-100 of 200 and 100 images; contents by layout and part."""
    train, test = images(200, 100, seed=1), images(100, 100, seed=2)
    contents = [
        ({"train": cifar100_pickle(*train)}, {"test": cifar100_pickle(*test)}),
        ({"train.bin": cifar100_binary(*train)}, {"test.bin": cifar100_binary(*test)}),
    ]
    return with_files(CIFAR100, contents, 200, 100), contents, train, test


def small_cifar10():
    """CIFAR-10 of five batches of 20 images, and 20 to test on."""
    parts = [images(20, 10, seed=number)[:2] for number in range(6)]
    contents = [
        (
            {f"data_batch_{n}{end}": write(*parts[n - 1]) for n in range(1, 6)},
            {f"test_batch{end}": write(*parts[5])},
        )
        for end, write in ((".bin", cifar10_binary), ("", cifar10_pickle))
    ]
    return with_files(CIFAR10, contents, 100, 20), contents, parts


def small_fashion():
    """Fashion-MNIST of 30 and 20 images."""
    random = np.random.default_rng(0)
    contents = []
    for part, count in (("train", 30), ("t10k", 20)):
        pixels = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(count) % 10
        contents.append({f"{part}-images-idx3-ubyte": idx(pixels), f"{part}-labels-idx1-ubyte": idx(labels)})
    return with_files(FASHION_MNIST, [contents], 30, 20), contents
