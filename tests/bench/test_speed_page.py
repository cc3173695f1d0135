"""docs/speed.md shows what its script derives."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_the_derived_tables():
    spec = importlib.util.spec_from_file_location("speed_page", DOCS / "speed.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (DOCS / "speed.md").read_text()
    for table in script.derived_tables():
        assert "\n".join(table) in page
