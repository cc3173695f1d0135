"""`prproduct train captioner`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.material import material_of
from prproduct.captioning.training import train
from prproduct.captioning.world.world import WORLD
from prproduct.lab.hardware import Hardware
from prproduct.lab.options import takes_options_of
from prproduct.lab.progress import Silent, Terminal

CaptionsOption = Annotated[
    str, typer.Option("--captions", help="a folder of `prproduct data captions`, or world: the small embedded one")
]
FeaturesOption = Annotated[
    Path | None, typer.Option("--features", help="of the images, in any layout; not for the world", show_default=False)
]


@takes_options_of(CaptionerConfig, Hardware)
def captioner(
    config: CaptionerConfig,
    hardware: Hardware,
    captions: CaptionsOption = WORLD,
    source: FeaturesOption = None,
    start: Annotated[Path | None, typer.Option(help="the run of cross-entropy that REINFORCE goes on from")] = None,
    start_from: Annotated[str, typer.Option("--from", help="its last epoch, or its best by validation")] = "last",
    run: Annotated[
        Path | None, typer.Option("--run-dir", "--run", help="the run's folder; runs/captioner-… if not given")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where the run was stopped")] = False,
    checkpoint_minutes: Annotated[float, typer.Option(help="between checkpoints inside of an epoch")] = 10.0,
    tensorboard: Annotated[bool, typer.Option(help="write events for TensorBoard")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Train a captioner under a product."""
    product = (config.product or "same" if start else config.product or "pr").replace(":", "")
    folder = run or Path("runs") / f"captioner-{product}-{config.phase}-{config.seed}"
    train(
        config,
        folder,
        material_of(captions, source),
        start=start,
        start_from=start_from,
        resume=resume,
        hardware=hardware,
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
        progress=Silent() if quiet else Terminal("words" if config.phase == "xe" else "captions"),
    )
