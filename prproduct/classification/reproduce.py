"""From configurations to the jobs of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prproduct.classification.data import load, split
from prproduct.classification.data.fetch import Report, silent
from prproduct.classification.training import ClassifierConfig, train
from prproduct.lab import runs
from prproduct.lab.hardware import Hardware
from prproduct.lab.sweep import Job


def run_folder(config: ClassifierConfig) -> Path:
    """Where a run lies in the folder of its sweep.

    >>> print(run_folder(ClassifierConfig(product="tempered:0.5", seed=3)))
    digits/mlp/tempered-0.5/seed-3
    """
    return Path(config.data, config.arch, config.product.replace(":", "-"), f"seed-{config.seed}")


def jobs(
    configs: Sequence[ClassifierConfig],
    folder: Path,
    *,
    accelerator: str = "auto",
    data_dir: Path | None = None,
    report: Report = silent,
) -> list[Job]:
    """The jobs of a sweep. Data sets are fetched and verified here, once, and folders of other runs refused.

    Paths become absolute ones, for workers that were started in another folder.
    """
    hardware, place = Hardware(accelerator=accelerator), data_dir.absolute() if data_dir else None
    wanted = dict.fromkeys((config.data, config.normalisation) for config in configs)
    datasets = {key: load(key[0], place, normalisation=key[1], report=report) for key in wanted}
    found = []
    for config in configs:
        dataset, target = datasets[config.data, config.normalisation], folder.absolute() / run_folder(config)
        runs.refuse_another(target, config.identity(dataset))
        steps = math.ceil(len(split(dataset, config.protocol).train) / config.recipe.batch_size)
        call = partial(train, config, target, resume=True, hardware=hardware, data_dir=place)
        found.append(Job(str(run_folder(config)), target, call, config.recipe.epochs * steps))
    return found
