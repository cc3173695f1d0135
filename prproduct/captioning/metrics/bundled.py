"""COCO's own captions, which come with pycocoevalcap: inside SPICE's program are the annotations of 2014."""

from __future__ import annotations

import json
import zipfile

from prproduct.captioning.metrics.java import folder_of
from prproduct.lab.errors import InputError


def coco_captions(split: str) -> dict[int, list[str]]:
    """The captions of each image of "train" (82,783 images) or "val" (40,504), in the order of the file."""
    path, name = folder_of("spice") / "spice-1.0.jar", f"coco/annotations/captions_{split}2014.json"
    try:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read(name))
    except (OSError, KeyError, zipfile.BadZipFile):
        raise InputError(
            f"{path}: no {name} in it; pycocoevalcap 1.2 has one: pip install 'prproduct[captions]'"
        ) from None
    captions: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        captions[annotation["image_id"]].append(annotation["caption"])
    return captions
