"""Tests and bench on a GPU, and one file to send back (docs/gpu-results/README.md): `make test-gpu`.

Needs torch, Triton, pytest, pytest-xdist, hypothesis, mpmath and the extra `lab`, in the environment that runs it. The
file is written in any case, also where tests fail: then that is what it says. `--device cpu --quick` tries this script.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from prproduct.bench.machine import Machine, check_device
from prproduct.lab.errors import InputError
from prproduct.ops import kernels

ROOT = Path(__file__).parents[1]
TESTS = ["tests/ops/test_gpu.py", "tests/test_functional.py", "tests/test_numerics.py", "tests/nn"]
TESTS += ["tests/conversion/test_convert.py", "tests/conversion/test_convert_layers.py"]
TESTS += [f"tests/compatibility/test_{name}.py" for name in ("precision", "compile", "training")]
BENCH = ["--only", "linear", "--only", "conv", "--only", "recurrent", "--only", "vit", "--no-reference", "--json"]
QUICK_TESTS = ["tests/compatibility/test_precision.py"]
QUICK_BENCH = ["--only", "Linear 128x512", "--repeats", "2", "--no-reference", "--json"]


def main() -> int:
    """Run both, write the file, and end with 1 if a test failed."""
    parser = argparse.ArgumentParser(description="tests and bench on a GPU, into one file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=ROOT / "gpu-results.json")
    parser.add_argument("--quick", action="store_true", help="few tests and one row of the bench, to try this script")
    chosen = parser.parse_args()
    try:
        device = check_device(chosen.device)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    results: dict[str, Any] = {"versions": _versions(), "machine": vars(Machine.here(str(device)))}
    results["eager backward"] = kernels.implementation(device)
    results["tests"] = _tests(QUICK_TESTS if chosen.quick else TESTS, str(device))
    results["bench"] = _bench(QUICK_BENCH if chosen.quick else BENCH, str(device))
    partial = chosen.output.with_suffix(".part")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(partial, chosen.output)
    tests = results["tests"]
    print(f"{chosen.output}: {tests['passed']} passed, {len(tests['failed'])} failed, {tests['skipped']} skipped")
    return 1 if tests["failed"] or not tests["passed"] else 0


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("torch", "triton", "prproduct"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions | {"cuda": torch.version.cuda, "hip": torch.version.hip}


def _tests(paths: list[str], device: str) -> dict[str, Any]:
    """How many passed and were skipped, and which failed with what first line."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--device={device}", f"--junitxml={junit}", *paths]
        subprocess.run(command, cwd=ROOT)
        if not junit.exists():
            return {"passed": 0, "skipped": 0, "failed": {"pytest": "it ended without a result"}}
        cases = list(ElementTree.parse(junit).iter("testcase"))
    failed: dict[str, str] = {}
    for case in cases:
        for problem in (*case.iter("failure"), *case.iter("error")):
            lines = problem.get("message", "").splitlines()
            failed[f"{case.get('classname')}::{case.get('name')}"] = lines[0][:300] if lines else ""
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - skipped - len(failed), "skipped": skipped, "failed": failed}


def _bench(arguments: list[str], device: str) -> Any:
    """The bench's own report, or the last line of what it said instead."""
    code = "from prproduct.cli import main; main()"
    command = [sys.executable, "-c", code, "bench", "--device", device, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}


if __name__ == "__main__":
    sys.exit(main())
