"""The compiled code on disk: kept for the next process, by many at once, and where the package cannot be written to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "prproduct"
# One small pass, told whether its code was found or compiled.
SCRIPT = """
import numpy as np
from prproduct.kernels import passes
x, norms, inverses = np.full((3, 4), 2.0), np.empty(3), np.empty(3)
addresses = (a.ctypes.data for a in (x, norms, inverses))
norms_of_vectors = passes.norms_of_vectors[8]
norms_of_vectors.call(0, 3, 0, norms_of_vectors.pack(3, 1, 4, 0, 4, 0, *addresses, 0))
assert norms.tolist() == [4.0] * 3, norms
print("found" if norms_of_vectors.compiled.cache_hits else "compiled")
"""


def start(site, home):
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, cwd=site, **pipes)


def result_of(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip()


@pytest.fixture
def installed(tmp_path):
    """A copy of the package, without what was compiled before."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "prproduct", ignore=shutil.ignore_patterns("__pycache__"))
    return site


def test_several_processes_at_once_then_one_that_finds_it(installed, tmp_path):
    running = [start(installed, tmp_path) for _ in range(3)]
    assert {result_of(process) for process in running} <= {"compiled", "found"}
    assert result_of(start(installed, tmp_path)) == "found"


def test_a_read_only_install_keeps_it_in_the_users_cache(installed, tmp_path):
    (installed / "prproduct" / "kernels" / "__pycache__").write_text("not a folder, so nothing can be written beside")
    home = tmp_path / "home"
    home.mkdir()
    assert result_of(start(installed, home)) == "compiled"
    assert result_of(start(installed, home)) == "found"
    assert list(home.rglob("*.nbi"))


def test_without_any_place_to_write_it_is_compiled_each_time(installed):
    (installed / "prproduct" / "kernels" / "__pycache__").write_text("not a folder")
    for _ in range(2):
        assert result_of(start(installed, "/dev/null")) == "compiled"
