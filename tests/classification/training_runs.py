"""Small trainings for the tests of this folder, in this process and in others, which import this file by name."""

import itertools
import json
import os
import resource
import signal
import socket
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import safetensors.torch
import torch

from prproduct.classification.data import load
from prproduct.classification.training import Classification, ClassifierConfig, load_model, train
from prproduct.lab import checkpoints, files, runs
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import Hardware

CPU = Hardware(accelerator="cpu")
SMALL = ClassifierConfig(arch="mlp-2-8", data="digits", product="p", epochs=3, batch_size=200, log_every=2)
# BatchNorm's statistics and dropout's random numbers have to go on, too.
DROPOUT = replace(SMALL, arch="wrn-10-1", batch_size=500, epochs=2, learning_rate=0.05, augment=True)


def run(config, folder, **options):
    return train(config, folder, hardware=CPU, tensorboard=False, **options)


def metrics(folder):
    """The records without their times."""
    return [{k: v for k, v in record.items() if k != "time"} for record in runs.read(folder).metrics]


def last(folder):
    """Everything in the last checkpoint but lengths and checksums of the records, which times get into."""
    place = Path(folder) / runs.CHECKPOINTS
    found = place / f"step-{checkpoints.steps(place)[-1]:08d}"
    state = json.loads((found / "state.json").read_text())["state"]
    del state["records"]
    return {name: (found / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")} | {"state": state}


def weights(folder):
    return safetensors.torch.load(last(folder)["model"])


def judged(folder, which="last"):
    """Loss and error on the test images, by hand."""
    digits = load("digits")
    images = (digits.test_images.float() / digits.levels - digits.mean[0]) / digits.std[0]
    with torch.no_grad():
        logits = load_model(folder, which)(images)
    wrong = (logits.argmax(1) != digits.test_labels).double().mean().item()
    return torch.nn.functional.cross_entropy(logits, digits.test_labels).item(), wrong


def assert_same_run(folder, expected):
    assert metrics(folder) == metrics(expected)
    assert last(folder) == last(expected)
    of = [checkpoints.steps(Path(place) / runs.CHECKPOINTS) for place in (folder, expected)]
    assert of[0] == of[1]


def process(function, *arguments):
    """A child of a process that has loaded everything and used nothing: quickly there, and safe to fork."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["prproduct.classification.training", "lightning_fabric", "sklearn.datasets"])
    started = context.Process(target=_alone, args=(function, *arguments))
    started.start()
    return started


def _alone(function, *arguments):
    torch.set_num_threads(1)
    function(*arguments)


def status(function, *arguments):
    started = process(function, *arguments)
    started.join(120)
    return started.exitcode


def train_and_die(moment, config, folder, minutes=10.0):
    """Go on with a training, and kill it at a moment: the moments are all that touches the disk, before and after."""
    passed = 0

    def at_a_moment():
        nonlocal passed
        passed += 1
        if passed == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def dangerous(function):
        def watched(*arguments, **options):
            at_a_moment()
            result = function(*arguments, **options)
            at_a_moment()
            return result

        return watched

    def write_in_halves(path, content):
        path.write_bytes(content[: len(content) // 2])
        at_a_moment()
        whole(path, content)

    whole = files.write_durably
    files.write_durably = checkpoints.write_durably = write_in_halves
    os.fsync, Path.rename, os.unlink = dangerous(os.fsync), dangerous(Path.rename), dangerous(os.unlink)
    run(config, folder, resume=True, checkpoint_minutes=minutes)


def train_with_little_space(config, folder, bytes_in_a_file):
    """Files can grow to a size and no further, as on a disk that is nearly full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_in_a_file, bytes_in_a_file))
    try:
        run(config, folder)
    except InputError as error:
        os._exit(3 if "cannot be written (File too large)" in str(error) and "\n" not in str(error) else 4)


def train_as(rank, processes, port, config, folder, resume, stop_at, stop=signal.SIGINT):
    """As torchrun would start it; the second process is asked to stop in the middle of a step, or is killed."""
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
    if stop_at is not None and rank == 1:
        sums, taken = Classification.sums, itertools.count()

        def stopped(self, model, batch):
            if next(taken) == stop_at:
                signal.raise_signal(stop)
            return sums(self, model, batch)

        Classification.sums = stopped
    try:
        run(config, folder, resume=resume)
    except KeyboardInterrupt:
        os._exit(130)
    except InputError as error:
        if stop == signal.SIGKILL:
            (Path(folder) / "said").write_text(str(error))
            os._exit(2)
        raise
    os._exit(0)  # Gloo's threads may outlive the group, and abort a process that leaves in the usual way


def train_together(processes, config, folder, resume=False, stop_at=None, stop=signal.SIGINT):
    """Train in several processes; their exit statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (processes, port, config, folder, resume, stop_at, stop)
    started = [process(train_as, rank, *arguments) for rank in range(processes)]
    for one in started:
        one.join(120)
    return [one.exitcode for one in started]
