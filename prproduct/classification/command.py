"""The command `prproduct train classifier`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from prproduct.classification.data.fetch import download_bars
from prproduct.classification.recipes import recipe
from prproduct.classification.training import ClassifierConfig, config_of, train
from prproduct.lab.checks import product_name
from prproduct.lab.hardware import Hardware
from prproduct.lab.options import (
    CheckpointMinutes,
    DataDir,
    Quiet,
    Restart,
    Resume,
    TensorBoard,
    stored_in,
    takes_options_of,
)
from prproduct.lab.progress import NoTrainingProgress, TrainingProgress
from prproduct.lab.runs import Record, folder_name

# --run-dir, since torchrun takes --run for an abbreviation of one of its own options.
Folder = Annotated[
    Path | None,
    typer.Option("--run-dir", "--run", help="the run's folder; runs/DATA-ARCH-PRODUCT-SEED if not given"),
]


def _folder(values: Mapping[str, Any]) -> Path:
    """Return --run-dir, or the default folder of a run with these options."""
    parts = (values["data"], values["arch"], folder_name(product_name(values["product"])), values["seed"])
    return Path(values["run"] or Path("runs") / "-".join(map(str, parts)))


def _stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's folder, and the options recorded there if the run is resumed or restarted."""
    options_of = _options if values["resume"] else _own_options
    return {**stored_in(_folder(values), values, options_of), "run": _folder(values)}


def _options(record: Record) -> dict[str, Any]:
    config = config_of(record)
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _own_options(record: Record) -> dict[str, Any]:
    """Return the options without those of the recipe: another network or number of epochs changes these."""
    options = _options(record)
    full = recipe(options["arch"], options["data"])
    of_recipe = {**asdict(full.scaled(options["epochs"])), "epochs": full.epochs}
    return {name: None if value == of_recipe.get(name) else value for name, value in options.items()}


@takes_options_of(ClassifierConfig, Hardware, stored=_stored)
def classifier(
    config: ClassifierConfig,
    hardware: Hardware,
    run: Folder = None,
    resume: Resume = False,
    restart: Restart = False,
    data_dir: DataDir = None,
    checkpoint_minutes: CheckpointMinutes = 10.0,
    tensorboard: TensorBoard = True,
    quiet: Quiet = False,
) -> None:
    """Train an image classifier under a product."""
    assert run is not None, "_stored sets it"
    progress = NoTrainingProgress() if quiet else TrainingProgress("images")
    with download_bars() as report:
        train(
            config,
            run,
            resume=resume,
            restart=restart,
            hardware=hardware,
            data_dir=data_dir,
            checkpoint_minutes=checkpoint_minutes,
            tensorboard=tensorboard,
            progress=progress,
            report=report,
        )
