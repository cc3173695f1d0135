"""Encoders: the embedded one, those of timm and torchvision, and what is refused."""

import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_pictures import picture, small_encoder
from torch import nn

from prproduct.captioning import encoder as encoders
from prproduct.captioning.data import pictures
from prproduct.lab.errors import InputError


def test_the_embedded_encoder_gives_a_grid_row_by_row_and_is_always_the_same():
    encoder = encoders.load()
    black, half = Image.new("RGB", (300, 200)), Image.new("RGB", (300, 200))
    half.paste(picture(1, (300, 40)), (0, 160))  # the lowest fifth
    both = encoder([black, half])
    assert both.shape == (2, 49, 1280)
    assert both.dtype == np.float32
    assert both.min() >= 0
    assert both.max() <= 6
    changed = np.abs(both[1] - both[0]).sum(1).reshape(7, 7).sum(1)  # by rows of the grid
    assert changed[6] > 5 * changed[0]
    assert np.allclose(encoder([half])[0], both[1], atol=1e-4)
    assert encoder.fingerprint == encoders.load().fingerprint


def test_another_weight_or_size_is_another_fingerprint():
    assert len({small_encoder().fingerprint, small_encoder(1).fingerprint, small_encoder(size=24).fingerprint}) == 3


class Net(nn.Module):
    """A stand-in for a network of a library."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward_features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(nn.functional.adaptive_avg_pool2d(self.forward_features(x), 1).flatten(1))


def stand_in_for_timm(monkeypatch, network):
    data = types.SimpleNamespace(
        resolve_model_data_config=lambda model: {
            "input_size": (3, 32, 32),
            "mean": (0.5, 0.4, 0.3),
            "std": (0.2, 0.2, 0.2),
        }
    )
    module = types.ModuleType("timm")
    module.__dict__.update(
        data=data, is_model=lambda name: name == "net", create_model=lambda name, pretrained: network, __version__="1"
    )
    monkeypatch.setitem(sys.modules, "timm", module)


def test_a_network_of_timm_gives_its_last_map_with_its_own_normalisation(monkeypatch):
    network = Net().eval()
    stand_in_for_timm(monkeypatch, network)
    encoder = encoders.load("timm:net")
    gray = Image.new("RGB", (50, 40), (255, 0, 51))
    pixels = torch.tensor([(1 - 0.5) / 0.2, -0.4 / 0.2, (0.2 - 0.3) / 0.2]).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    expected = network.body(pixels).flatten(2).transpose(1, 2)
    assert np.allclose(encoder([gray]), expected.detach().numpy(), atol=1e-5)
    assert encoder([gray]).shape == (1, 15 * 15, 4)
    with pytest.raises(InputError, match="'timm:other' is not known to timm"):
        encoders.load("timm:other")


class Tokens(nn.Module):
    """A transformer: its features are a list of tokens."""

    def __init__(self):
        super().__init__()
        self.patches, self.block = nn.Conv2d(3, 4, 8, stride=8), nn.Linear(4, 4)

    def forward_features(self, x):
        return self.block(self.patches(x).flatten(2).transpose(1, 2))

    def forward(self, x):
        return self.forward_features(x).mean(1)


def test_a_transformer_of_timm_is_refused(monkeypatch):
    stand_in_for_timm(monkeypatch, Tokens())
    with pytest.raises(InputError, match="choose a convolutional network"):
        encoders.load("timm:net")


def stand_in_for_torchvision(monkeypatch, network):
    class Weights:
        class DEFAULT:
            @staticmethod
            def transforms():
                return types.SimpleNamespace(crop_size=[32], mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.2])

    models = types.SimpleNamespace(
        list_models=lambda: ["net"],
        get_model_weights=lambda name: Weights,
        get_model=lambda name, weights: network,
    )
    module = types.ModuleType("torchvision")
    module.__dict__.update(models=models)
    monkeypatch.setitem(sys.modules, "torchvision", module)


def test_a_network_of_torchvision_gives_the_map_before_pooling_and_a_transformer_is_refused(monkeypatch):
    network = Net().eval()
    stand_in_for_torchvision(monkeypatch, network)
    encoder = encoders.load("torchvision:net")
    black = Image.new("RGB", (50, 40))
    pixels = torch.tensor([-0.5 / 0.2, -0.4 / 0.2, -0.3 / 0.2]).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    expected = network.body(pixels).flatten(2).transpose(1, 2)
    assert np.allclose(encoder([black]), expected.detach().numpy(), atol=1e-5)
    stand_in_for_torchvision(monkeypatch, Tokens())
    with pytest.raises(InputError, match="choose a convolutional network"):
        encoders.load("torchvision:net")


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="needs timm: pip install timm"):
        encoders.load("timm:resnet50")


DATA = Path(os.environ["PRPRODUCT_DATA"]) / "flickr8k" if "PRPRODUCT_DATA" in os.environ else None


@pytest.mark.skipif(DATA is None or not DATA.exists(), reason="PRPRODUCT_DATA names no folder with flickr8k/")
def test_the_embedded_encoder_tells_dogs_from_other_pictures():
    """Its ImageNet classes 151 to 268 are dogs."""
    listed = json.loads((DATA / "dataset_flickr8k.json").read_text())["images"]
    dogs = {i["filename"]: sum("dog" in s["tokens"] for s in i["sentences"]) for i in listed}
    chosen = [[name for name, said in dogs.items() if said == times][:8] for times in (5, 0)]
    encoder = encoders.load()
    shares = []
    with pictures.Reader() as reader:
        for names in chosen:
            read = [reader.read(pictures.Picture(0, DATA / "images.zip", name)) for name in names]
            vectors = torch.from_numpy(encoder(read)).mean(1)
            shares.append(encoder.network._fc(vectors).softmax(1)[:, 151:269].sum(1).mean().item())
    assert shares[0] > 0.6
    assert shares[1] < 0.15
