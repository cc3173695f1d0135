"""The documents are true: their code runs, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def ids(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_code_runs_from_top_to_bottom_and_prints_what_it_says(path, capsys):
    """Blocks of one document share their names; after a print, the lines that begin with # are what it prints."""
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL):
        exec(compile(code, str(path), "exec"), names)
        printed = re.findall(r"^print\(.*\n((?:^# .*\n?)+)", code, flags=re.MULTILINE)
        said = [line.removeprefix("# ") for block in printed for line in block.splitlines()]
        assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+?)\)", path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), target
