"""Reading the runs of a report from folders, and writing the report atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable_file, read_json, replace_durably, writing
from prproduct.lab.progress import counted
from prproduct.lab.record_files import ANGLES, check_angles
from prproduct.lab.report.content import Bullets, Code, Paragraph, Section, Text
from prproduct.lab.report.markdown import markdown
from prproduct.lab.report.page import html
from prproduct.lab.runs import CONFIG, FORMAT, Record
from prproduct.probe import AngleRecord, read_jsonl

SUFFIXES = (".html", ".htm", ".md")


def find_all(
    places: Iterable[str | Path], check: Callable[[Record], object] | None = None
) -> tuple[list[Record], list[str]]:
    """Return the runs in folders, and a line for each run that cannot be read or does not pass its task's `check`."""
    folders: dict[Path, Path] = {}
    for place in map(Path, places):
        if not place.is_dir():
            what = "is a file" if place.exists() else "no such folder"
            raise InputError(f"{place}: {what}; give the folder of a run, or one that holds runs")
        here = [place] if (place / CONFIG).exists() else _below(place)
        if not here:
            raise InputError(f"{place}: there is no run in it; a run is a folder with a {CONFIG} of prproduct's")
        for folder in here:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise InputError("no run was given; name the folder of a run, or one that holds runs")
    found: list[Record] = []
    broken: list[str] = []
    for folder in sorted(folders.values()):
        try:
            record = _read(folder)
            if check:
                check(record)
        except InputError as error:
            broken.append(str(error) if str(folder) in str(error) else f"{folder}: {error}")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            broken.append(f"{folder}: its records or its configuration are not a run's ({said})")
        else:
            found.append(record)
    return found, broken


def angles_of(record: Record) -> list[AngleRecord]:
    """Return the angle records of a run; [] if it has none."""
    path = record.folder / ANGLES
    if not os.path.lexists(path):
        return []
    check_angles(record.folder, record.metrics)
    try:
        return read_jsonl(path)
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8, it is corrupt") from None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    except (TypeError, RecursionError) as error:
        raise InputError(f"{path}: does not hold records of an AngleProbe ({error})") from None


def unreadable(broken: Sequence[str]) -> list[Section]:
    """Return a section that names the runs that could not be read, if there are any."""
    if not broken:
        return []
    said = Paragraph(f"{counted(len(broken), 'run')} could not be read, in no table of this page:")
    return [Section("Not read", (said, Bullets(tuple((Code(line),) for line in broken))))]


def lead(records: Sequence[Record], broken: Sequence[str] = ()) -> str:
    """Return the line below the title.

    >>> lead([]), lead([], ["runs/a/config.json: is a folder"])
    ('0 runs, 0 of them finished', '0 runs, 0 of them finished; 1 could not be read')
    """
    finished = sum(record.finished for record in records)
    line = f"{counted(len(records), 'run')}, {finished} of them finished"
    return f"{line}; {len(broken)} could not be read" if broken else line


def check_target(target: str | Path) -> Path:
    """Return the path of the report; InputError if it cannot be written."""
    target = Path(target)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"{target}: a report is written as {', '.join(SUFFIXES)}; choose a name that ends so")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: no such folder; make it, or choose another place for the report")
    check_writable_file(target)
    return target


def write_report(
    places: Iterable[str | Path],
    target: str | Path,
    check: Callable[[Record], object],
    content: Callable[[Sequence[Record]], tuple[str, list[Section]]],
) -> tuple[str, list[str]]:
    """Write the page on the runs in `places`; return its first line, and a line for each run that cannot be read.

    `check` raises an error for a run that the page cannot show, `content` returns the title and the sections, of which
    the first is the summary. InputError if no run can be read.
    """
    target = check_target(target)
    records, broken = find_all(places, check)
    if not records:
        raise InputError(broken[0])
    title, (summary, *others) = content(records)
    first_line = lead(records, broken)
    write(title, first_line, [summary, *unreadable(broken), *others], target)
    return first_line, broken


def write(title: str, lead: Text, sections: Sequence[Section], target: str | Path) -> None:
    """Write a report as HTML, or as Markdown with charts and pictures in a folder beside it, by the target's ending."""
    target = check_target(target)
    if target.suffix.lower() != ".md":
        _replace(target, html(title, lead, sections))
        return
    folder = target.with_name(f"{target.stem}-figures")
    text, shown = markdown(title, lead, sections, folder.name)
    if shown:
        with writing(folder):
            folder.mkdir(exist_ok=True)
    for name, content in shown.items():
        _replace(folder / name, content)
    _replace(target, text)  # last: its figures exist


def _replace(path: Path, content: str | bytes) -> None:
    # Bytes of a folder's name that are not UTF-8 are shown as question marks.
    replace_durably(path, content if isinstance(content, bytes) else content.encode("utf-8", "replace"))


def _below(place: Path) -> list[Path]:
    """Return the folders of runs below a folder, behind links too; runs are not searched for further runs."""
    folders, seen = [], set[str]()
    for name, inner, files in os.walk(place, followlinks=True):
        real = os.path.realpath(name)
        if real in seen:
            inner.clear()  # a link may lead back
            continue
        seen.add(real)
        if CONFIG in inner or (CONFIG in files and _is_run(Path(name))):
            folders.append(Path(name))
            inner.clear()
    return folders


def _is_run(folder: Path) -> bool:
    """Return True unless config.json belongs to another program; an unreadable one is reported later."""
    try:
        config = read_json(folder / CONFIG)
    except InputError:
        return True
    return {"format", "task", "config"} <= config.keys()


def _read(folder: Path) -> Record:
    record = runs.read(folder)
    missing = [key for key in ("format", "task", "config", "data", "environment") if key not in record.config]
    if missing:
        raise InputError(f"{folder / CONFIG}: is not that of a run, it has no {missing[0]}; give the folder of a run")
    if record.config["format"] != FORMAT:
        raise InputError(
            f"{folder / CONFIG}: has format {record.config['format']!r}, this version of prproduct reads {FORMAT}"
        )
    for key in ("config", "data", "environment"):
        if not isinstance(record.config[key], dict):
            raise InputError(f"{folder / CONFIG}: is not that of a run, its {key} is not an object")
    return record
