"""The documents are true: their code runs, their links lead somewhere, the README's file tree is the tree."""

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


def test_the_file_tree_of_the_readme_is_the_tree():
    tree = re.search(r"## The files\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    listed, folders = set(), [ROOT]
    for line in tree.group(1).splitlines():
        name = line.split()[0]
        folders = [*folders[: (len(line) - len(line.lstrip())) // 2 + 1], ROOT]
        place = folders[(len(line) - len(line.lstrip())) // 2] / name
        assert place.exists(), f"{name} is listed but not there"
        listed.add(place)
        folders = [*folders[:-1], place]
    modules = {p for p in (ROOT / "prproduct").rglob("*.py") if p.name != "__init__.py"}
    scripts = {p for folder in ("examples", "benchmarks", "docs") for p in (ROOT / folder).glob("*.py")}
    pages = set((ROOT / "docs").glob("*.md"))
    assert {p.relative_to(ROOT) for p in modules | scripts | pages} <= {p.relative_to(ROOT) for p in listed}
