"""Captions and features for tests of training: coloured shapes, whose features say what they are, with noise."""

import os
import signal
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.prepared import Described, encode
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.training import CrossEntropyTask, ReinforceTask, train
from prproduct.lab import checkpoints, runs
from prproduct.lab.hardware import Hardware

COLOURS, SHAPES = ("red", "green", "blue"), ("circle", "square", "star")
WIDTH = len(COLOURS) + len(SHAPES)
NETWORK = {"hidden": 8, "embedding": 8, "attention": 8}
XE = CaptionerConfig(
    product="pr",
    **NETWORK,
    epochs=2,
    batch_size=7,
    captions_per_image=2,
    learning_rate=0.01,
    log_every=1,
    feedback_every=1,
)
RL = CaptionerConfig(phase="rl", epochs=2, batch_size=7, samples=3, learning_rate=1e-3, log_every=1)


class InMemory:
    """Features by image id."""

    def __init__(self, arrays, fingerprint="small"):
        self.arrays, self.fingerprint = arrays, fingerprint

    @property
    def width(self):
        return next(iter(self.arrays.values())).shape[1]

    def __contains__(self, image):
        return image in self.arrays

    def of(self, image):
        return self.arrays[image]


def dataset(images=40, seed=0, width=WIDTH):
    draw, noise = (np.random.default_rng([seed, stream]) for stream in range(2))
    described, arrays = [], {}
    for image in range(images):
        colour, shape = int(draw.integers(3)), int(draw.integers(3))
        c, s = COLOURS[colour], SHAPES[shape]
        written = (f"a {c} {s}", f"there is one {c} {s}", f"a {s} that is {c}")[: 2 + image % 2]
        split = "train" if image < images // 2 else "val" if image < 3 * images // 4 else "test"
        described.append(Described(image, f"{image}.png", split, written, written))
        regions = noise.normal(scale=0.1, size=(1 + image % 3, width))
        regions[0, colour] += 2
        regions[0, len(COLOURS) + shape] += 2
        arrays[image] = regions.astype(np.float32)
    vocabulary = build([tokens.split() for one in described for tokens in one.tokens], 1)
    return CaptionDataset(encode(described, vocabulary), InMemory(arrays))


def run(config, folder, what=None, **options):
    hardware = Hardware(accelerator="cpu")
    return train(config, folder, what or dataset(), hardware=hardware, tensorboard=False, **options)


def weights(folder):
    place = Path(folder) / runs.CHECKPOINTS
    return safetensors.torch.load_file(place / f"step-{checkpoints.steps(place)[-1]:08d}" / "model.safetensors")


def metrics(folder):
    """The records without their times."""
    return [{k: v for k, v in record.items() if k != "time"} for record in runs.read(folder).metrics]


def die_at_step(step, config, folder, start):
    """Train, and be killed before a step's gradient is taken."""
    torch.set_num_threads(1)
    done = 0
    for task in (CrossEntropyTask, ReinforceTask):
        whole = task.__dict__["sums"]

        def counted(self, model, batch, whole=whole):
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(self, model, batch)

        task.sums = counted
    run(config, folder, start=start, checkpoint_minutes=0.0)


def train_as(rank, processes, port, config, folder, start):
    """As torchrun would start it."""
    torch.set_num_threads(1)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    run(config, folder, start=start)
    os._exit(0)
