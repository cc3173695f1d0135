"""Pictures of one colour each with captions, features by a tiny encoder, and how to train on them in a second."""

import torch
from PIL import Image
from small_dataset import NETWORK

from prproduct.captioning import encoder
from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data import features, grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.dataset import CaptionDataset

COLOURS = {"red": (220, 30, 20), "green": (20, 200, 40), "blue": (30, 40, 230)}
CONFIG = CaptionerConfig(
    **NETWORK, product="pr", dropout=0.0, epochs=12, batch_size=6, captions_per_image=1, learning_rate=0.05
)


def tiny(name, mean=127.0):
    """An encoder of four regions of three numbers, whose only weight is nothing's."""
    return encoder.Encoder(
        f"timm:{name}", 8, (mean,) * 3, (64.0,) * 3, torch.nn.Flatten(), lambda pixels: torch.nn.AvgPool2d(4)(pixels)
    )


def paint(path, colour, size=(24, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, COLOURS[colour]).save(path)
    return path


def prepare(folder, encode=tiny):
    """Pictures of one colour each, their captions, and their features."""
    names = {f"{number}.png": list(COLOURS)[number % 3] for number in range(24)}
    described = []
    for number, (name, colour) in enumerate(names.items()):
        paint(folder / "pictures" / name, colour)
        split = "train" if number < 18 else "val" if number < 21 else "test"
        described.append(Described(number, name, split, (f"All {colour}.",), (f"all {colour}",)))
    prepared.write(folder / "captions", described, build([one.tokens[0].split() for one in described], 1))
    grids.write(folder / "f.h5", pictures.find([folder / "pictures"]), encode("tiny"))
    return CaptionDataset(prepared.read(folder / "captions"), features.open(folder / "f.h5"))
