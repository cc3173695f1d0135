"""A run's captions of a whole split in the format of the COCO evaluation, and their scores.

results/captions_test_results.json    [{"image_id": …, "caption": …}, …], ready to upload
results/scores_test.json              the settings of the search, and the score of every metric
results/examples_test.json            a few images with their references

A report reads runs and nothing else, so the images that it shows as examples are stored with the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from prproduct.captioning.data.prepared import Image
from prproduct.captioning.dataset import CaptionDataset, check_fits
from prproduct.captioning.inference import GeneratedCaption, Search, generate_captions, load_captioner
from prproduct.captioning.input_files import (
    ImageId,
    image_id_field,
    object_list,
    raise_for_images,
    string_field,
    strings_field,
)
from prproduct.captioning.metrics.files import read_results
from prproduct.captioning.metrics.score import METRICS, Evaluation, evaluate
from prproduct.lab import checkpoints, runs
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json, read_json_value, replace_durably

EXAMPLES = 12
SHARE_TRUE = "true"  # the score that only captions of the toy world have: the share of them that are true


def captions_file(folder: str | Path, split: str) -> Path:
    """Path of a run's captions of a split."""
    return Path(folder) / runs.RESULTS / f"captions_{split}_results.json"


def scores_file(folder: str | Path, split: str) -> Path:
    """Path of the scores of these captions."""
    return Path(folder) / runs.RESULTS / f"scores_{split}.json"


def examples_file(folder: str | Path, split: str) -> Path:
    """Path of a few images of the split with their references."""
    return Path(folder) / runs.RESULTS / f"examples_{split}.json"


def write_results(
    folder: str | Path,
    dataset: CaptionDataset,
    metrics: Sequence[str] = METRICS,
    *,
    in_world: bool = False,
    progress: Callable[[int], Any] = lambda images: None,
) -> dict[str, Any]:
    """Caption the test images with a run's best epoch, score the captions, write both to its folder, return the scores.

    `in_world` if the data set is the toy world, where it is known which captions are true. Captions that exist and were
    found by the same search are not computed again, nor are their scores, except of metrics that failed before.
    """
    write_captions(folder, dataset, progress=progress)
    scored, captions = scores_of(folder), read_results(captions_file(folder, "test"))
    done = set(scored["metrics"]) - set(scored["failures"])
    missing = [metric for metric in metrics if metric not in done]
    if not missing and (SHARE_TRUE in scored["scores"] or not in_world):
        return scored
    references = {image.id: image.references for image in dataset.captions.of("test") if image.references}
    without = references.keys() - captions.keys()
    raise_for_images(captions_file(folder, "test"), "no caption of images that have references", without)
    evaluation = Evaluation()
    if missing and references:
        evaluation = evaluate(list(references.values()), [captions[image] for image in references], missing)
    return add_scores(folder, "test", captions, evaluation, missing, in_world)


def write_captions(
    folder: str | Path,
    dataset: CaptionDataset,
    split: str = "test",
    search: Search | None = None,
    *,
    which: str = "best",
    progress: Callable[[int], Any] = lambda images: None,
) -> None:
    """Write a run's captions of a split and the settings of their search, without scores, unless they exist."""
    search = (search or Search()).up_to(dataset.captions.longest)
    record = runs.read(folder)
    check_fits(record, dataset)
    images = dataset.captions.of(split)
    if not images:
        raise InputError(f"there are no images of the split {split} to caption")
    if split == "test":  # the split that reports show
        write_examples(examples_file(folder, split), choose_examples(images))
    how = {
        "split": split,
        "epoch": which,
        "step": checkpoints.step_of(record, which),
        "search": asdict(search),
        "data": dataset.identity,
    }
    if scores_file(folder, split).exists() and captions_file(folder, split).exists():
        known = read_json(scores_file(folder, split))
        if known.get("how") == how and known.get("images") == len(images):
            return
    model, vocabulary, ids = load_captioner(folder, which), dataset.captions.vocabulary, [image.id for image in images]
    captions = list(generate_captions(model, vocabulary, dataset.features, ids, search, progress=progress))
    # First a scores file that matches no search: stopped in between, new captions must not have old scores.
    unscored = {"how": how, "images": len(images), "metrics": [], "scores": {}, "failures": {}}
    _write_json(scores_file(folder, split), {**unscored, "how": {}})
    save_captions(captions_file(folder, split), captions)
    _write_json(scores_file(folder, split), unscored)


def add_scores(
    folder: str | Path,
    split: str,
    captions: Mapping[ImageId, str],
    evaluation: Evaluation,
    metrics: Sequence[str],
    in_world: bool = False,
) -> dict[str, Any]:
    """Add an evaluation of a run's captions by `metrics` to its scores file, and return all scores.

    `in_world` adds the share of captions that are true of the toy world's images.
    """
    scored = scores_of(folder, split)
    before = json.dumps(scored)
    done = set(scored["metrics"]) - set(scored["failures"])
    scored["scores"] |= {name: float(score.total) for name, score in evaluation.scores.items()}
    if in_world:
        from prproduct.captioning.world import caption_is_true

        scored["scores"][SHARE_TRUE] = sum(map(caption_is_true, captions, captions.values())) / len(captions)
    kept = {metric: why for metric, why in scored["failures"].items() if metric not in metrics}
    # A metric that fails today, for lack of Java, keeps an earlier score: it is of the same captions.
    scored["failures"] = kept | {metric: why for metric, why in evaluation.failures.items() if metric not in done}
    scored["metrics"] = list(dict.fromkeys([*scored["metrics"], *metrics]))
    if json.dumps(scored) != before:
        _write_json(scores_file(folder, split), scored)
    return scored


def scores_of(folder: str | Path, split: str = "test") -> dict[str, Any]:
    """The content of a run's scores file: `how` captions were searched for, `scores` (1 is 100 %), and `failures`.

    >>> scores_of("runs/a")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: runs/a/results/scores_test.json: no such file; caption the images of test
    """
    path = scores_file(folder, split)
    if not path.is_file():
        raise InputError(f"{path}: no such file; caption the images of {split}")
    content = read_json(path)
    kinds = {"how": dict, "images": int, "metrics": list, "scores": dict, "failures": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    if not wrong:
        scores = content["scores"].items()
        wrong = [name for name, value in scores if isinstance(value, bool) or not isinstance(value, int | float)]
    if not wrong and not isinstance(content["how"].get("search"), dict):
        wrong = ["how"]  # or captioning was stopped while it replaced the captions of another search
    if wrong:
        raise InputError(f"{path}: not the scores of captions, {wrong[0]} is wrong; remove it and caption again")
    return content


def save_captions(path: Path, captions: Sequence[GeneratedCaption]) -> None:
    """Write captions in the format of COCO's evaluation server."""
    rows = [{"image_id": one.image, "caption": one.caption} for one in captions]
    replace_durably(path, json.dumps(rows, ensure_ascii=False).encode())


class Example(NamedTuple):
    """An image, the name of its file, and its references."""

    image: ImageId
    file: str
    references: tuple[str, ...]


def choose_examples(images: Sequence[Image], count: int = EXAMPLES) -> list[Example]:
    """`count` of the images that have references, evenly spaced, so that runs on the same captions have the same ones.

    >>> images = [Image(number, f"{number}.jpg", "test", ("a dog",), ()) for number in range(100)]
    >>> [example.image for example in choose_examples(images, 4)]
    [12, 37, 62, 87]
    """
    known = [image for image in images if image.references]
    count = min(count, len(known))
    indices = [(2 * number + 1) * len(known) // (2 * count) for number in range(count)]
    return [Example(known[index].id, known[index].file, known[index].references) for index in indices]


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as JSON."""
    _write_json(
        path,
        [{"image_id": one.image, "file": one.file, "references": list(one.references)} for one in examples],
    )


def read_examples(path: Path) -> list[Example]:
    """Read a file of `write_examples`."""
    examples = []
    for entry in object_list(path, read_json_value(path)):
        image, file = image_id_field(path, entry, "image_id"), string_field(path, entry, "file")
        examples.append(Example(image, file, tuple(strings_field(path, entry, "references"))))
    return examples


def _write_json(path: Path, content: Any) -> None:
    replace_durably(path, json.dumps(content, indent=1, ensure_ascii=False).encode())
