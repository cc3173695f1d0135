"""Copy the records of finished runs to docs/results: `python docs/results/keep_runs.py RUNS docs/results/cifar`.

Checkpoints and captions are not copied, and absolute paths in recorded commands are shortened. Angles are copied whole
for seed 0; of every run, `angles_at_end.json` has their means over the last recorded steps, which tables.py reads.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

from prproduct.lab import runs
from prproduct.lab.files import as_json, replace_durably
from prproduct.lab.record_files import ANGLES, METRICS

LAST = 4  # recorded steps
STATISTICS = ("min_sin", "sample_min_sin", "mean_sin")
Angles = dict[str, dict[str, float]]


def shortened(value: Any) -> Any:
    """Replace each absolute path in the strings of a JSON value by its last two names.

    >>> shortened({"command": "prproduct report /home/me/runs/cifar -o /tmp/page.html", "threads": 1})
    {'command': 'prproduct report runs/cifar -o tmp/page.html', 'threads': 1}
    """
    if isinstance(value, str):
        return re.sub(r"(?<!\S)/\S*?(?P<last>[^/\s]+(/[^/\s]+)?)(?!\S)", lambda found: found["last"], value)
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value] if isinstance(value, list) else value


def means(steps: list[Angles]) -> Angles:
    """Return the mean of each statistic of each layer over the recorded steps."""
    return {
        layer: {name: statistics.fmean(step[layer][name] for step in steps) for name in STATISTICS}
        for layer in steps[-1]
    }


def angles_at_end(path: Path) -> Angles:
    """Return the mean statistics of each layer over the last recorded steps of an angles.jsonl that is not empty."""
    steps: dict[int, Angles] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        name = ".".join(filter(None, (record["layer"], record["part"])))
        steps.setdefault(record["step"], {})[name] = record
    return means([steps[step] for step in sorted(steps)[-LAST:]])


def keep(folder: Path, target: Path) -> None:
    """Copy one run's records."""
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / runs.CONFIG).read_text())
    replace_durably(target / runs.CONFIG, as_json(shortened(config)))
    shutil.copy(folder / METRICS, target)
    if (folder / ANGLES).exists() and (folder / ANGLES).stat().st_size:
        replace_durably(target / "angles_at_end.json", as_json(angles_at_end(folder / ANGLES)))
        if config["config"]["seed"] == 0:
            shutil.copy(folder / ANGLES, target)
    for scores in folder.glob("results/scores_*.json"):
        (target / "results").mkdir(exist_ok=True)
        replace_durably(target / "results" / scores.name, as_json(shortened(json.loads(scores.read_text()))))


def keep_gpt(path: Path, target: Path) -> None:
    """Copy the file that examples/char_gpt.py writes, its angles as those of the other runs."""
    target.mkdir(parents=True, exist_ok=True)
    run = json.loads(path.read_text())
    angles = {evaluation["step"]: evaluation.pop("angles") for evaluation in run["evaluations"]}
    replace_durably(target / "angles_at_end.json", as_json(means(list(angles.values())[-LAST:])))
    if run["config"]["seed"] == 0:
        lines = [
            json.dumps({"step": step, "layer": layer, "part": "", **values}) + "\n"
            for step, layers in angles.items()
            for layer, values in layers.items()
        ]
        (target / ANGLES).write_text("".join(lines))
    replace_durably(target / path.name, as_json(run))


def main() -> None:
    """Copy all finished runs below a folder; name those that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="a folder with runs below it, such as `prproduct reproduce` makes")
    parser.add_argument("target", type=Path, help="the folder that gets the same tree")
    options = parser.parse_args()
    for config in sorted(options.runs.rglob(runs.CONFIG)):
        name = config.parent.relative_to(options.runs)
        if runs.read(config.parent).finished:
            keep(config.parent, options.target / name)
        else:
            print(f"{name}: not finished")
    for path in sorted(options.runs.rglob("run.json")):
        keep_gpt(path, options.target / path.parent.relative_to(options.runs))


if __name__ == "__main__":
    main()
