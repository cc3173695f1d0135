"""docs/architectures.md shows what its script prints."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_the_scripts_table():
    spec = importlib.util.spec_from_file_location("architectures_page", DOCS / "architectures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.table() in (DOCS / "architectures.md").read_text()
