"""The command `prproduct train captioner`: its options, which `--resume` and `--restart` take from the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.dataset import WORLD, dataset_options, open_dataset
from prproduct.captioning.inference import config_of
from prproduct.captioning.training import train
from prproduct.lab.hardware import Hardware
from prproduct.lab.options import (
    CheckpointMinutes,
    Quiet,
    Restart,
    Resume,
    TensorBoard,
    stored_in,
    takes_options_of,
)
from prproduct.lab.progress import NoTrainingProgress, TrainingProgress
from prproduct.lab.runs import Record, folder_name, read

CaptionsOption = Annotated[
    str, typer.Option("--captions", help="a folder of `prproduct data captions`, or world: the embedded toy world")
]
FeaturesOption = Annotated[
    Path | None, typer.Option("--features", help="of the images, in any layout; not for the world", show_default=False)
]


def _run_folder(values: Mapping[str, Any]) -> Path:
    """The folder of --run-dir, or the default one for the other options."""
    if values["run"]:
        return Path(values["run"])
    product = values["product"] or str(config_of(read(values["start"])).product if values["start"] else "pr")
    return Path("runs") / f"captioner-{folder_name(product)}-{values['phase']}-{values['seed']}"


def _stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a run's folder stores, for --resume."""
    return {**stored_in(_run_folder(values), values, _options), "run": _run_folder(values)}


def _options(record: Record) -> dict[str, Any]:
    """The options of a run by its config.json."""
    config = config_of(record)
    start = record.config.get("start")
    own = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**own, **({"start_from": start["from"]} if isinstance(start, dict) and "from" in start else {})}


@takes_options_of(CaptionerConfig, Hardware, stored=_stored)
def captioner(
    config: CaptionerConfig,
    hardware: Hardware,
    captions: CaptionsOption = WORLD,
    source: FeaturesOption = None,
    start: Annotated[Path | None, typer.Option(help="the cross-entropy run that REINFORCE starts from")] = None,
    start_from: Annotated[str, typer.Option("--from", help="last or best: the epoch of that run")] = "last",
    run: Annotated[
        Path | None, typer.Option("--run-dir", "--run", help="the run's folder; runs/captioner-… if not given")
    ] = None,
    resume: Resume = False,
    restart: Restart = False,
    checkpoint_minutes: CheckpointMinutes = 10.0,
    tensorboard: TensorBoard = True,
    quiet: Quiet = False,
) -> None:
    """Train a captioner under a product."""
    assert run is not None, "_stored gives it"
    source = source and Path(source)  # a string if it comes from the run's folder
    train(
        config,
        run,
        open_dataset(captions, source),
        places=dataset_options(captions, source),
        start=start,
        start_from=start_from,
        resume=resume,
        restart=restart,
        hardware=hardware,
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
        progress=NoTrainingProgress() if quiet else TrainingProgress("words" if config.phase == "xe" else "captions"),
    )
