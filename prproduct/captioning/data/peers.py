"""Reading captions that were preprocessed for other captioning projects: `cocotalk.json` and `cocotalk_label.h5`.

The first file has the vocabulary and the images. The second has the captions as rows of word ids padded with 0, and
the first and last row of each image, counted from 1. `coco-train-idxs.p`, if there is one, has document frequencies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.data.prepared import SPLIT_OF, CaptionSet, Described, check, encode
from prproduct.captioning.data.vocabulary import UNKNOWN, Vocabulary
from prproduct.captioning.metrics.files import image_id_field, object_list, read_caption_json
from prproduct.captioning.metrics.reward import PackedCaptions
from prproduct.lab.errors import InputError


def read(words: str | Path, labels: str | Path, frequencies: str | Path | None = None) -> CaptionSet:
    """The captions of `cocotalk.json` and `cocotalk_label.h5`, with the word ids of these files."""
    described, vocabulary, longest = describe(Path(words), Path(labels))
    captions = encode(described, vocabulary, longest)
    return CaptionSet(vocabulary, captions.images, longest, Path(frequencies) if frequencies else None)


def describe(words: Path, labels: Path) -> tuple[list[Described], Vocabulary, int]:
    """The images with their captions as words, the vocabulary, and the maximum caption length (columns of the rows)."""
    content = read_caption_json(words)
    if not isinstance(content, dict) or not {"ix_to_word", "images"} <= content.keys():
        raise InputError(f"{words}: not like cocotalk.json, with 'ix_to_word' and 'images'")
    vocabulary = _vocabulary(words, content["ix_to_word"])
    images = object_list(words, content["images"])
    rows, first, last = _labels(labels)
    if len(first) != len(images):
        raise InputError(f"{labels}: captions of {len(first)} images, where {words} has {len(images)}")
    if rows.max(initial=0) >= len(vocabulary):
        raise InputError(f"{labels}: the word id {rows.max()}, where {words} has 1 to {len(vocabulary.words)}")
    try:
        packed = PackedCaptions.from_labels(rows, first, last)
    except InputError as error:
        raise InputError(f"{labels}: {error}") from None
    starts = packed.caption_starts
    described = []
    for index, image in enumerate(images):
        split = image.get("split")
        if split not in SPLIT_OF:
            raise InputError(f"{words}: an image of split {split!r}, not of {', '.join(SPLIT_OF)}: {str(image)[:80]}")
        captions = range(packed.image_starts[index], packed.image_starts[index + 1])
        texts = tuple(vocabulary.decode(packed.tokens[starts[c] : starts[c + 1]].tolist()) for c in captions)
        number, file = image_id_field(words, image, "id"), str(image.get("file_path", ""))
        described.append(Described(number, Path(file).name, SPLIT_OF[split], texts, texts))
    check(labels, described)
    return described, vocabulary, rows.shape[1]


def _vocabulary(path: Path, words: Any) -> Vocabulary:
    """The vocabulary of `ix_to_word`, whose keys are "1", "2", …; if it has no UNK, UNK gets the next id."""
    try:
        ordered = [words[str(number)] for number in range(1, len(words) + 1)]
    except (KeyError, TypeError):
        raise InputError(f"{path}: 'ix_to_word' is not words by the ids '1', '2' and so on without a gap") from None
    if not all(isinstance(word, str) for word in ordered):
        raise InputError(f"{path}: 'ix_to_word' has something else than words")
    return Vocabulary(tuple(ordered) if UNKNOWN in ordered else (*ordered, UNKNOWN))


def _labels(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Caption rows, and the first and last row of each image."""
    try:
        with h5py.File(path, "r") as file:
            rows, first, last = (file[name][()] for name in ("labels", "label_start_ix", "label_end_ix"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give cocotalk_label.h5 or one like it") from None
    except (OSError, KeyError, AttributeError, TypeError):
        raise InputError(f"{path}: not HDF5 with 'labels', 'label_start_ix' and 'label_end_ix'") from None
    integers = all(isinstance(array, np.ndarray) and array.dtype.kind in "iu" for array in (rows, first, last))
    if not integers or rows.ndim != 2 or first.ndim != 1 or first.shape != last.shape or rows.size == 0:
        raise InputError(f"{path}: 'labels' must be rows of ids, and the other two an integer for each image")
    return rows, first, last
