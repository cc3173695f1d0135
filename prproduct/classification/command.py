"""`prproduct train classifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prproduct.classification.data.progress import download_bars
from prproduct.classification.training import ClassifierConfig, train
from prproduct.lab.hardware import Hardware
from prproduct.lab.options import takes_options_of
from prproduct.lab.progress import Silent, Terminal

# torchrun takes --run for an abbreviation of an option of its own, hence the longer name.
Folder = Annotated[
    Path | None, typer.Option("--run-dir", "--run", help="the run's folder; runs/DATA-ARCH-PRODUCT-SEED if not given")
]


@takes_options_of(ClassifierConfig, Hardware)
def classifier(
    config: ClassifierConfig,
    hardware: Hardware,
    run: Folder = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where the run was stopped")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="the folder that holds data sets", show_default=False)] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="between checkpoints inside of an epoch")] = 10.0,
    tensorboard: Annotated[bool, typer.Option(help="write events for TensorBoard")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Train an image classifier under a product."""
    name = "-".join(str(part) for part in (config.data, config.arch, config.product.replace(":", ""), config.seed))
    folder = run or Path("runs") / name
    progress = Silent() if quiet else Terminal("images")
    with download_bars() as report:
        train(
            config,
            folder,
            resume=resume,
            hardware=hardware,
            data_dir=data_dir,
            checkpoint_minutes=checkpoint_minutes,
            tensorboard=tensorboard,
            progress=progress,
            report=report,
        )
