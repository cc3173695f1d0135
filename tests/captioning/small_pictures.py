"""Small pictures of noise, and a small encoder for them."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn

from prproduct.captioning.encoder import Encoder


def small_encoder(seed=0, size=16):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.ReLU())
    return Encoder("small", size, (127.0,) * 3, (128.0,) * 3, network, network)


def picture(number=0, size=(24, 20)):
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def content(number=0, form="PNG", **how):
    file = io.BytesIO()
    picture(number).save(file, form, **how)
    return file.getvalue()
