"""The documents are true: their code runs, their links lead somewhere, and what they name exists."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from prproduct import cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACES = [ROOT / "docs" / "gpu-results" / "README.md", ROOT / "docs" / "results" / "README.md"]
FOLDERS = ("prproduct", "tests", "docs", "benchmarks", "examples")


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_code_runs_from_top_to_bottom_and_prints_what_it_says(path, capsys):
    """Blocks of one document share their names; after a print, the lines that begin with # are what it prints."""
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL):
        exec(compile(code, str(path), "exec"), names)
        printed = re.findall(r"^print\(.*\n((?:^# .*\n?)+)", code, flags=re.MULTILINE)
        said = [line.removeprefix("# ") for block in printed for line in block.splitlines()]
        assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize("path", [*DOCUMENTS, *PLACES], ids=ids)
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", [*DOCUMENTS, *PLACES], ids=ids)
def test_named_source_files_exist(path):
    """A name may be a file's whole path or its end: `ops/rule.py` is prproduct/ops/rule.py."""
    named = set(re.findall(r"`([a-z][\w/.-]*\.(?:py|cpp|h|j2|css))`", path.read_text()))
    assert not [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in source_files())]


@pytest.mark.parametrize("path", [*DOCUMENTS, *PLACES], ids=ids)
def test_commands_have_the_options_that_are_named_with_them(path):
    text = path.read_text().replace("\\\n", " ")
    for command in cli.COMMANDS:
        for rest in re.findall(rf"\bprproduct {command.words}\b([^`|#\n]*)", text):
            named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest))
            assert named <= options_of(command), f"prproduct {command.words}{rest}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_or_a_broken_anchor(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "api.html").exists()


@cache
def source_files() -> list[str]:
    found = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    return [*(ids(file) for file in found), "setup.py"]


@cache
def options_of(given: cli.Command) -> set[str]:
    command = get_command(cli.app(given))
    for word in given.words.split():
        command = command.commands[word]
    return {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}
