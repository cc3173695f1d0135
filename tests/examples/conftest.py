"""Examples are run as scripts, with small arguments, inside of the test's process: torch is imported once for all."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """A function that runs an example with arguments and returns what it prints."""

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run
