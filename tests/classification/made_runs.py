"""Runs written by hand: as many as wanted, with the errors that a test wants, in the format of docs/runs.md."""

import json
from dataclasses import asdict
from pathlib import Path

from report_text import found_in

from prproduct.classification.recipes import recipe
from prproduct.classification.report.comparison import groups
from prproduct.probe import AngleRecord, write_jsonl

# Errors by product, in percent: those of the study of gradients.
STUDY = {"p": [2.1, 2.3], "no-length": [2.2, 2.25], "no-direction": [71.0, 75.0], "pr": [2.0, 2.4], "r": [88.0, 91.0]}


def made_run(
    folder,
    product="pr",
    seed=0,
    error=0.1,
    *,
    selected=None,
    epochs=3,
    arch="mlp",
    data="digits",
    ended="end",
    layers=(),
    protocol="validation",
    **settings,
):
    """Write a run whose last epoch has a test error, and with `selected` a chosen epoch that has another."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    own = {"arch": arch, "data": data, "product": product, "seed": seed, "protocol": protocol, **settings}
    trained = {**asdict(recipe(arch, data).scaled(max(1, epochs))), "epochs": epochs}
    config = {
        "format": 1,
        "task": "classifier",
        "config": {**own, "recipe": trained},
        "data": {"name": data, "fingerprint": "0123456789abcdef", "mean": [0.5], "std": [0.25]},
        "environment": {
            "versions": {"torch": "2.13.0"},
            "commit": "a" * 40,
            "command": f"prproduct train classifier --product {product} --seed {seed}",
            "processor": "x86_64",
            "threads": 1,
            "hardware": {"device": "cpu", "processes": 1},
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    done = {"end": epochs, "diverged": epochs - 1, None: epochs - 1}[ended]
    lines = [_epoch(number, error * (1 + 2 * (epochs - 1 - number) / epochs), product) for number in range(done)]
    if ended == "end":
        last = {key: value for key, value in lines[-1].items() if key not in ("event", "time")} if lines else None
        chosen = last if selected is None or last is None else {**last, "epoch": 0, "test_error": selected}
        chosen = chosen if protocol == "validation" else None
        lines.append({"event": "end", "step": 10 * epochs, "last": last, "selected": chosen})
    elif ended == "diverged":
        lines.append({"event": "diverged", "step": 10 * done + 3, "epoch": done, "what": "loss", "where": "in fc"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for place, layer in enumerate(layers):
        found = [angle(layer, product, 10 * step, 0.3 + 0.1 * place - 0.02 * step, seed) for step in range(4)]
        write_jsonl(found, folder / "angles.jsonl")
    return folder


def pairs(folder, errors, **settings):
    """Make a run for each product and seed, errors by product in percent; the groups that the report makes of them."""
    for product, values in errors.items():
        for seed, error in enumerate(values):
            made_run(folder / f"{product.replace(':', '')}-{seed}", product, seed, error / 100, **settings)
    return groups(found_in([folder]))


def _epoch(number, error, product):
    seconds = 3.0 if product == "pr" else 2.0
    return {
        "event": "epoch",
        "epoch": number,
        "step": 10 * (number + 1),
        "train_loss": 3 * error,
        "train_error": error * 0.9,
        "validation_loss": 3.1 * error,
        "validation_error": error,
        "test_loss": 3.2 * error,
        "test_error": error,
        "learning_rate": 0.1,
        "time": {"train_seconds": seconds, "evaluation_seconds": 0.5, "samples_per_second": 600 / seconds},
    }


def angle(layer, product, step, sin, seed=0):
    sin += 0.01 * seed
    return AngleRecord(
        step=step,
        training=True,
        layer=layer,
        part="",
        product=product,
        calls=1,
        pairs=100,
        zero_pairs=0,
        min_sin=sin / 2,
        mean_sin=0.9,
        max_sin=1.0,
        max_cos=0.9,
        sample_min_sin=sin,
        histogram=(0, 50, 50),
        length_norm=0.3,
        direction_norm=0.9,
    )
