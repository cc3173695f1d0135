"""Captioners' runs written by hand, with the scores, captions and angles that a test wants (docs/runs.md)."""

import json
from dataclasses import asdict
from pathlib import Path

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.inference import Search
from prproduct.captioning.report.training import OTHERS, PARTS
from prproduct.probe import AngleRecord, write_jsonl

NAMES = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
EVERY = 5  # steps between records of angles
NO_SPICE = {"spice": "SPICE needs two jars that are not there"}
DATA = {"captions": "c" * 16, "vocabulary": "v" * 16, "words": 101, "features": "f" * 16, "width": 6}
EXAMPLES = [
    {"image_id": 7, "file": "dog.jpg", "references": ["A dog runs.", "One <b>dog</b> | runs"]},
    {"image_id": 9, "file": "cat.jpg", "references": ["A cat."]},
]


def made_run(folder, phase="xe", product="pr", seed=0, cider=0.5, *, ended="end", angles=0.0, start=None, **settings):
    """Write a run; `cider` None leaves its captions unscored, `angles` is the smallest |sin θ| of all its parts."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    known = {"data": DATA, "places": {"captions": "world"}, "beams": 5, "seconds": 1.0}
    known |= {"true": None}
    known |= {key: settings.pop(key) for key in list(settings) if key in known}
    first = CaptionerConfig(phase="xe", product=product, seed=seed, hidden=8, epochs=3).resolved()
    config = first
    if phase == "rl":
        config = CaptionerConfig(phase="rl", product=product, seed=seed, epochs=3, **settings).resolved(first)
    elif settings:
        config = CaptionerConfig(**{**asdict(first), **settings})
    said = {
        "format": 1,
        "task": "captioner",
        "config": {**asdict(config), "angles": EVERY if angles else 0},
        "data": known["data"],
        "environment": {
            "versions": {"torch": "2.13.0"},
            "commit": "a" * 40,
            "command": f"prproduct train captioner --phase {phase}",
            "processor": "x86_64",
            "threads": 1,
            "hardware": {"device": "cpu", "processes": 1},
            "places": known["places"],
        },
    }
    if phase == "rl":
        begun = {**asdict(first), **(start or {})}
        said["start"] = {"config": begun, "from": "last", "step": 30, "weights": "0" * 16}
    (folder / "config.json").write_text(json.dumps(said))
    _write_metrics(folder, phase, config.epochs, ended, known["seconds"])
    if angles:
        _write_angles(folder, product, angles, phase == "xe")
    if cider is not None and ended == "end":
        _write_results(folder, product, phase, cider, known["beams"], known["true"])
    return folder


def _write_metrics(folder, phase, epochs, ended, seconds):
    lines = [_epoch(number, phase, seconds) for number in range(epochs if ended == "end" else epochs - 1)]
    if ended == "end":
        last = {key: value for key, value in lines[-1].items() if key not in ("event", "time")}
        lines.append({"event": "end", "step": 10 * epochs, "last": last, "selected": last})
    elif ended == "diverged":
        lines.append({"event": "diverged", "step": 23, "epoch": 2, "what": "loss", "where": "in output"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _epoch(number, phase, seconds):
    time = {"train_seconds": seconds * (9 if number == 0 else 1), "evaluation_seconds": 0.5}
    time["samples_per_second"] = 600 / time["train_seconds"]
    found = {"train_loss": 3.0 - number / 4, "validation_loss": 3.1 - number / 4, "validation_cider": 0.3 + number / 10}
    if phase == "rl":
        found |= {"train_reward": 0.4 + number / 10, "train_baseline": 0.41, "train_words": 8.5}
        found |= {"train_advantage": 0.05}
        time |= {"decoding_seconds": time["train_seconds"] / 4, "reward_seconds": time["train_seconds"] / 50}
    return {"event": "epoch", "epoch": number, "step": 10 * (number + 1), **found, "learning_rate": 0.1, "time": time}


def _write_results(folder, product, phase, cider, beams, true):
    (folder / "results").mkdir()
    scores = {name: 0.01 * place + 0.2 for place, name in enumerate(NAMES)} | {"CIDEr": cider}
    scores |= {} if true is None else {"true": true}
    how = {"split": "test", "epoch": "best", "search": asdict(Search(beams=beams).up_to()), "data": DATA}
    metrics = ["bleu", "meteor", "rouge-l", "cider", "spice"]
    content = {"how": how, "images": 1000, "metrics": metrics, "scores": scores, "failures": NO_SPICE}
    captions = [{"image_id": 7, "caption": f"{product} {phase} says dog"}, {"image_id": 9, "caption": ""}]
    for name, value in (("scores", content), ("examples", EXAMPLES)):
        (folder / "results" / f"{name}_test.json").write_text(json.dumps(value))
    (folder / "results" / "captions_test_results.json").write_text(json.dumps(captions))


def _write_angles(folder, product, sin, training):
    for place, layer in enumerate((*PARTS, *OTHERS)):
        found = [
            _angle(layer, product, step, sin + 0.01 * place + 0.001 * step, training) for step in range(0, 30, EVERY)
        ]
        write_jsonl(found, folder / "angles.jsonl")


def _angle(layer, product, step, sin, training):
    return AngleRecord(
        step=step,
        training=training,
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
