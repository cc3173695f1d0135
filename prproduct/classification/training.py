"""Training a classifier: `train(config, folder)` writes the folder of a run (docs/runs.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from prproduct.classification import models
from prproduct.classification.data import Batch, Dataset, EvaluationBatches, TrainingBatches, load, split
from prproduct.classification.data.dataset import NORMALISATIONS, PROTOCOLS
from prproduct.classification.data.fetch import Report, silent
from prproduct.classification.data.sources import SOURCES, source
from prproduct.classification.recipes import Recipe, learning_rate, recipe
from prproduct.conversion import convert
from prproduct.lab import checkpoints, runs
from prproduct.lab.checks import check_known, check_least, product_name
from prproduct.lab.engine import Settings
from prproduct.lab.environment import is_first_process
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable
from prproduct.lab.hardware import PRECISIONS, Hardware, summed
from prproduct.lab.options import option
from prproduct.lab.progress import NoTrainingProgress
from prproduct.lab.report.content import display
from prproduct.lab.seeds import check_seed
from prproduct.lab.session import train_task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class ClassifierConfig:
    """Everything that determines the numbers of a run. None means the value of the network's recipe.

    >>> ClassifierConfig(arch="resnet110", data="cifar10", epochs=8).recipe.milestones
    (4, 6)
    >>> ClassifierConfig(product="q")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: unknown product 'q': choose one of p, pr, ...
    """

    arch: str = option("mlp", "the network: mlp, resnet110, preresnet110, wrn-28-10, densenet-bc-100-12, …")
    data: str = option("digits", ", ".join(SOURCES))
    product: str = option("pr", "the product of all its convolutions and linear layers: p, pr, tempered:0.5, …")
    seed: int = option(0, "decides initial weights, the order of images and their augmentation, alike for all products")
    epochs: int | None = option(None, "number of epochs; the recipe's milestones keep their share of them")
    batch_size: int | None = option(None, "images of a training step, over all processes")
    optimizer: str | None = option(None, "sgd or adam")
    learning_rate: float | None = option(None, "learning rate before the first milestone")
    momentum: float | None = option(None, "momentum of SGD")
    weight_decay: float | None = option(None, "weight decay of all parameters")
    milestones: tuple[int, ...] | None = option(None, "epoch at which the rate falls; may be given several times")
    augment: bool | None = option(None, "augment training images by random crops and flips")
    protocol: str = option("validation", "validation holds out a tenth to choose an epoch by; paper trains on all")
    normalisation: str = option(
        "true", "by the data's own mean and deviation (true), or most CIFAR code's (widespread)"
    )
    clip_norm: float = option(0.0, "clip the norm of the gradient to this; 0: never")
    precision: str = option("32", ", ".join(PRECISIONS))
    compile: bool = option(False, "train with torch.compile")
    channels_last: bool = option(False, "images and weights in channels-last layout")
    limit_train: int | None = option(None, "train on the first so many training images only")
    max_steps: int | None = option(None, "end after so many steps, also in the middle of an epoch")
    angles: int = option(0, "record the angles every so many steps; 0: never")
    log_every: int = option(50, "record the loss every so many steps")

    def __post_init__(self) -> None:
        for name, known in (
            ("protocol", PROTOCOLS),
            ("normalisation", NORMALISATIONS),
            ("precision", PRECISIONS),
        ):
            check_known(name, getattr(self, name), known)
        for name, least in (("clip_norm", 0), ("angles", 0), ("log_every", 1), ("limit_train", 1), ("max_steps", 1)):
            check_least(name, getattr(self, name), least)
        check_seed(self.seed)
        object.__setattr__(self, "product", product_name(self.product))
        _check_network(self.arch, source(self.data).shape[-1])
        _ = self.recipe  # validates itself

    @property
    def recipe(self) -> Recipe:
        """The recipe of the network, with the values of this configuration that are not None."""
        found = recipe(self.arch, self.data)
        if self.epochs is not None and self.epochs != found.epochs:
            found = found.scaled(self.epochs)
        names = ("batch_size", "optimizer", "learning_rate", "momentum", "weight_decay", "milestones", "augment")
        return replace(found, **{name: getattr(self, name) for name in names if getattr(self, name) is not None})

    def build(self, channels: int, size: int, classes: int) -> nn.Module:
        """Return the network under the product. Its weights depend on torch's generator, not on the product."""
        return convert(models.build(self.arch, channels, classes, size), self.product)

    def identity(self, dataset: Dataset) -> dict[str, Any]:
        """Return the content of config.json that identifies the run: equal identities give equal numbers."""
        resolved = asdict(self.recipe)
        own = {name: value for name, value in asdict(self).items() if name not in resolved}
        images = {"name": dataset.name, "fingerprint": dataset.fingerprint, "mean": dataset.mean, "std": dataset.std}
        return {"task": "classifier", "config": {**own, "recipe": resolved}, "data": images}


class Classification:
    """The engine's `Task` of classification: network, optimizer, batches, and errors on validation and test images."""

    def __init__(self, config: ClassifierConfig, dataset: Dataset, fabric: Fabric) -> None:
        self.config, self.recipe, self.seed = config, config.recipe, config.seed
        self._layout = torch.channels_last if config.channels_last else torch.contiguous_format
        torch.manual_seed(config.seed)
        model = config.build(dataset.channels, dataset.image_size, dataset.classes)
        self.model = model.to(fabric.device, memory_format=self._layout)  # type: ignore[call-overload]
        self.optimizer = _optimizer(self.recipe, self.model)
        parts = split(dataset, config.protocol)
        train = parts.train if config.limit_train is None else parts.train[: min(config.limit_train, len(parts.train))]
        self.title = (
            f"{config.arch} with the product {display(config.product)} on {config.data}, {len(train):,} training "
            f"images, seed {config.seed}"
        )
        share: dict[str, Any] = {"rank": fabric.global_rank, "world_size": fabric.world_size}
        self._batches = TrainingBatches(
            dataset,
            train,
            batch_size=self.recipe.batch_size,
            seed=config.seed,
            augment=self.recipe.augment,
            device=fabric.device,
            **share,
        )
        self._evaluated = {"test": EvaluationBatches.of_test(dataset, fabric.device, **share)}
        if len(parts.validation):
            held_out = EvaluationBatches.of_training(dataset, parts.validation, fabric.device, **share)
            self._evaluated = {"validation": held_out, **self._evaluated}
        self.select_largest, self.select_by = False, "validation_error" if len(parts.validation) else None
        self.epochs, self.steps = self.recipe.epochs, self._batches.steps
        self._fabric = fabric

    def batches(self, epoch: int, start_step: int) -> Iterable[Batch]:
        """Batches of `epoch` for this process, starting at `start_step`."""
        return self._batches.epoch(epoch, start_step)

    def learning_rate(self, epoch: int, step: int) -> float:
        """Return the recipe's learning rate of `epoch`, the same at every step."""
        return learning_rate(self.recipe, epoch)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy and the number of misclassified images of a batch."""
        logits = model(batch.images.contiguous(memory_format=self._layout)).float()
        wrong = (logits.detach().argmax(1) != batch.labels).sum()
        return {"loss": F.cross_entropy(logits, batch.labels, reduction="sum"), "error": wrong}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return mean loss and error rate on the test images, and on the validation images if there are any."""
        found: dict[str, float] = {}
        for name, images in self._evaluated.items():
            totals = {"loss": 0.0, "error": 0.0}
            for batch in images:
                totals = {key: totals[key] + value.item() for key, value in self.sums(model, batch).items()}
            sums = summed(self._fabric, list(totals.values()))
            found |= {f"{name}_{key}": total / len(images.images) for key, total in zip(totals, sums, strict=True)}
        return found

    def seconds(self) -> dict[str, float]:
        """Return no times besides those that the engine measures."""
        return {}


def train(
    config: ClassifierConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    restart: bool = False,
    hardware: Hardware | None = None,
    data_dir: str | Path | None = None,
    checkpoint_minutes: float = 10.0,
    tensorboard: bool = True,
    progress: NoTrainingProgress | None = None,
    report: Report = silent,
) -> Path:
    """Train a classifier and return the folder of its run.

    `resume` continues from the last checkpoint, starts a run that is not there, and leaves a finished one as it is.
    `restart` removes the run's results and trains it from the start. With several devices, or under `torchrun`, every
    process calls this function; only the first one writes.
    """
    if is_first_process():
        check_writable(Path(folder))
    settings = Settings(
        compile=config.compile,
        clip_norm=config.clip_norm,
        max_steps=config.max_steps,
        angles=config.angles,
        log_every=config.log_every,
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
    )
    dataset = load(config.data, data_dir, normalisation=config.normalisation, report=report)
    return train_task(
        lambda fabric: Classification(config, dataset, fabric),
        folder,
        config.identity(dataset),
        settings,
        resume=resume,
        restart=restart,
        places={"data_dir": Path(data_dir) if data_dir else None},
        hardware=hardware,
        precision=config.precision,
        progress=progress,
        summary=lambda: _summary(folder),
    )


def config_of(record: runs.Record) -> ClassifierConfig:
    """Return the configuration of a run, with all values of its recipe filled in."""
    path = record.folder / runs.CONFIG
    try:
        if record.config["task"] != "classifier":
            raise InputError(f"it is a run of a {record.config['task']}")
        own = dict(record.config["config"])
        known = ClassifierConfig.__dataclass_fields__
        given = {name: value for name, value in own.pop("recipe").items() if name in known}
        return ClassifierConfig(**own, **{**given, "milestones": tuple(given["milestones"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is not the configuration of a classifier's run ({error})") from None


def load_model(folder: str | Path, which: str = "last") -> nn.Module:
    """Return the network of a run in eval mode, of its "last" checkpoint or of its "best" epoch by validation."""
    record = runs.read(folder)
    config = config_of(record)
    checkpoint = checkpoints.load_epoch(record, which)
    known = source(config.data)
    model = config.build(known.shape[0], known.shape[-1], known.classes)
    model.load_state_dict(checkpoint.model)
    return model.eval()


@cache
def _check_network(arch: str, size: int) -> None:
    """Raise InputError if there is no network of this name for images of this size; nothing is allocated."""
    with torch.device("meta"):
        models.build(arch, 1, 2, size)


def _summary(folder: str | Path) -> str:
    """Return the line that ends the output of a training."""
    end = runs.read(folder).of("end")[0]
    last, chosen = end["last"], end["selected"]
    line = f"{folder}: finished, test error {100 * last['test_error']:.2f} % after the last epoch"
    if chosen:
        line += f", {100 * chosen['test_error']:.2f} % after epoch {chosen['epoch'] + 1}, chosen by validation"
    return line


def _optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    if recipe.optimizer == "sgd":
        return SGD(
            model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    return Adam(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
