"""`prproduct reproduce captions`: the paper's captioning experiment as a sweep.

For each product and seed one job trains both phases, cross-entropy and then REINFORCE. Afterwards the test captions of
every run are generated and scored, and a report is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from prproduct.captioning import report
from prproduct.captioning.command import CaptionsOption, FeaturesOption
from prproduct.captioning.configuration import DEFAULTS, CaptionerConfig
from prproduct.captioning.dataset import WORLD, CaptionDataset, check_ids, dataset_options, open_dataset
from prproduct.captioning.metrics.command import name_failure
from prproduct.captioning.report.gallery import find_examples
from prproduct.captioning.results import choose_examples, write_results
from prproduct.captioning.training import train
from prproduct.lab import runs
from prproduct.lab.checks import check_known, check_least, product_name
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable
from prproduct.lab.options import option, takes_options_of
from prproduct.lab.progress import NoSweepProgress, progress_bar
from prproduct.lab.report.files import check_target
from prproduct.lab.sweep import Job, Plan, sweep
from prproduct.lab.sweep.progress import SweepProgress, exit_if_unfinished

# Column names of the paper's Table 2, so that the table fits into 80 columns.
_SHORT = {**{f"Bleu_{n}": f"B{n}" for n in range(1, 5)}, "METEOR": "M", "ROUGE_L": "RL", "CIDEr": "C", "SPICE": "S"}
_TITLE = "test captions by beam search, in %: BLEU, METEOR, ROUGE-L, CIDEr, SPICE"


@dataclass(frozen=True)
class Scale:
    """Products, number of seeds, and the options that differ from the paper's: of the network and of each phase."""

    products: tuple[str, ...]
    seeds: int
    network: dict[str, Any] = field(default_factory=dict)
    xe: dict[str, Any] = field(default_factory=dict)
    rl: dict[str, Any] = field(default_factory=dict)


SCALES = {
    "quick": Scale(
        ("p", "pr"),
        1,
        {"hidden": 64, "embedding": 64, "attention": 64, "dropout": 0.1},
        {"epochs": 15, "batch_size": 20, "learning_rate": 5e-3, "angles": 100},
        {"epochs": 8, "batch_size": 20, "learning_rate": 5e-4, "angles": 100},
    ),
    "small": Scale(
        ("p", "r", "pr"),
        1,
        {"hidden": 256, "embedding": 256, "attention": 128},
        {"epochs": 5, "batch_size": 10, "angles": 300},  # many small steps: few epochs fit
        {"epochs": 1, "batch_size": 10, "angles": 300},
    ),
    "paper": Scale(("p", "r", "pr"), 1, {}, {"angles": 500}, {"angles": 500}),
}


@dataclass(frozen=True)
class Choice:
    """The runs of a sweep: a scale, and the options that override it.

    >>> Choice(scale="huge")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: scale 'huge' is not known; there are quick, small, paper
    """

    scale: str = option("quick", ", ".join(SCALES))
    seeds: int | None = option(None, "how many: 0, 1, …; the same for all products")
    product: tuple[str, ...] | None = option(None, "another product; may be given often")
    xe_epochs: int | None = option(None, "of cross-entropy")
    rl_epochs: int | None = option(None, "of REINFORCE")
    learning_rate: float | None = option(None, "at the start of cross-entropy")
    batch_norm: bool = option(False, "BatchNorm around the embeddings of regions, as in the author's code")

    def __post_init__(self) -> None:
        check_known("scale", self.scale, SCALES)
        check_least("seeds", self.seeds, 1)
        products = tuple(map(product_name, self.product or ()))
        if len(set(products)) < len(products):
            raise InputError(f"product is given twice: {', '.join(products)}")


def pairs(choice: Choice) -> list[tuple[CaptionerConfig, CaptionerConfig]]:
    """The configurations of both phases for each product and seed.

    >>> [(xe.product, xe.seed, rl.phase) for xe, rl in pairs(Choice())]
    [('p', 0, 'rl'), ('pr', 0, 'rl')]
    """
    scale = SCALES[choice.scale]
    xe = scale.xe | _given(epochs=choice.xe_epochs, learning_rate=choice.learning_rate)
    rl = scale.rl | _given(epochs=choice.rl_epochs)
    network = scale.network | {"batch_norm": choice.batch_norm}
    return [
        (
            CaptionerConfig(phase="xe", product=product, seed=seed, **network, **xe),
            CaptionerConfig(phase="rl", product=product, seed=seed, **rl),
        )
        for seed in range(choice.seeds or scale.seeds)
        for product in choice.product or scale.products
    ]


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def folder_of(output: Path, config: CaptionerConfig) -> Path:
    """The folder of a run inside the folder of its sweep.

    >>> print(folder_of(Path("runs"), CaptionerConfig(phase="rl", product="tempered:0.5", seed=3)))
    runs/tempered-0.5/seed-3/rl
    """
    return output / runs.folder_name(config.product or "pr") / f"seed-{config.seed}" / config.phase


def jobs(choice: Choice, output: Path, captions: str, source: Path | None, train_images: int) -> list[Job]:
    """A job for each product and seed, which trains both phases on `train_images` images.

    Paths become absolute, since workers may run in another folder.
    """
    output, features = output.absolute(), None if source is None else source.absolute()
    captions = captions if captions == WORLD else str(Path(captions).absolute())
    found = []
    for xe, rl in pairs(choice):
        first, second = folder_of(output, xe), folder_of(output, rl)
        call = partial(train_both, xe, rl, output, captions, features)
        steps = _steps(xe, train_images) + _steps(rl, train_images)
        found.append(Job(str(second.parent.relative_to(output)), second, call, steps, earlier=(first,)))
    return found


def _steps(config: CaptionerConfig, images: int) -> int:
    """The number of steps of a whole training on `images` images."""
    default = DEFAULTS[config.phase]
    return (config.epochs or default["epochs"]) * math.ceil(images / (config.batch_size or default["batch_size"]))


def train_both(xe: CaptionerConfig, rl: CaptionerConfig, output: Path, captions: str, source: Path | None) -> None:
    """Train cross-entropy, then REINFORCE from its last epoch; finished runs are left as they are."""
    dataset, options = open_dataset(captions, source), dataset_options(captions, source)
    first = train(xe, folder_of(output, xe), dataset, places=options, resume=True)
    train(rl, folder_of(output, rl), dataset, places=options, start=first, resume=True)


@takes_options_of(Choice, Plan)
def captions(
    choice: Choice,
    plan: Plan,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder of the runs and their page")] = Path(
        "runs/captions"
    ),
    captions: CaptionsOption = WORLD,
    source: FeaturesOption = None,
    pictures: Annotated[
        Path | None, typer.Option(help="a folder or zip archive of the pictures, for the page", show_default=False)
    ] = None,
    address: Annotated[str | None, typer.Argument(help="of a Ray cluster, behind --ray", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """The paper's Table 2: captioners under P, R and PR, by cross-entropy and then REINFORCE on CIDEr."""
    check_writable(output)
    if output.is_dir():
        check_target(output / "report.html")
    plan.check(address)
    dataset = open_dataset(captions, source)  # raises for wrong files here, once, not in every job
    check_ids(dataset)
    for split in ("val", "test"):
        if not dataset.captions.of(split):
            raise InputError(f"{captions}: no images of the split {split}, whose captions are scored")
    if pictures is not None:
        find_examples(pictures, [one.file for one in choose_examples(dataset.captions.of("test"))])
    wanted = jobs(choice, output, captions, source, len(dataset.captions.of("train")))
    workers = plan.open(len(wanted), address)
    progress = NoSweepProgress() if quiet else SweepProgress()
    progress.say(f"{len(wanted)} runs of two phases in {output}; {workers}")
    results = sweep(wanted, workers, retries=plan.retries, progress=progress)
    folders = [folder for result in results if result.finished for folder in _phases(result.job)]
    for metric, reason in _write_all_results(folders, dataset, captions == WORLD, quiet).items():
        name_failure(metric, reason, "the same command computes it when that is mended")
    if folders:
        Console().print(_table(folders))
        begun = [folder for job in wanted for folder in _phases(job) if (folder / runs.CONFIG).exists()]
        report.write(begun, output / "report.html", pictures)  # it lists those that diverged, too
        print(f"the page: {output / 'report.html'}")
    exit_if_unfinished(results)


def _phases(job: Job) -> list[Path]:
    """The folders of a job's runs: cross-entropy, then REINFORCE."""
    return [*job.earlier, job.folder]


def _write_all_results(folders: Sequence[Path], dataset: CaptionDataset, in_world: bool, quiet: bool) -> dict[str, str]:
    """Caption and score the test images with each run, and return the metrics that failed with the reasons."""
    images, failures = len(dataset.captions.of("test")), dict[str, str]()
    for folder in folders:
        with progress_bar(f"test captions of {'/'.join(folder.parts[-3:])}", images, hidden=quiet) as update:
            scored = write_results(folder, dataset, in_world=in_world, progress=lambda count: update(advance=count))
        failures |= scored["failures"]
    return failures


def _table(folders: Sequence[Path]) -> Table:
    """A row of scores for each run, in percent."""
    table = Table(title=_TITLE, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("product", "seed", "phase"):
        table.add_column(name)
    scored = [(runs.read(folder).config["config"], report.scores_of(folder)["scores"]) for folder in folders]
    names = list(dict.fromkeys(name for _, scores in scored for name in scores))
    for name in names:
        table.add_column(_SHORT.get(name, name), justify="right")
    for config, scores in scored:
        cells = [f"{100 * scores[name]:.1f}" if name in scores else "–" for name in names]
        table.add_row(config["product"], str(config["seed"]), config["phase"], *cells)
    return table
