"""The origin of a run's numbers: its folder, commit, command and machine; and its file of angles."""

from __future__ import annotations

import os

from prproduct.lab.errors import InputError
from prproduct.lab.report.content import Code, Paragraph, Text
from prproduct.lab.runs import ANGLES, Record, check_angles
from prproduct.probe import AngleRecord, read_jsonl

OPENING = Paragraph(
    "All runs that were found. Those that are unfinished, diverged or repeat another are in no average. Folders "
    "are named as they were given; a + behind a commit says that files had been changed since."
)
COLUMNS = ("folder", "commit", "command", "machine")


def origin(record: Record) -> tuple[Text, ...]:
    """Return the cells of the columns `COLUMNS`."""
    there = record.config["environment"]
    return (
        Code(str(record.folder)),
        Code(commit(record)),
        Code(str(there.get("command", "not recorded"))),
        f"{machine(record)}, torch {there.get('versions', {}).get('torch', '?')}",
    )


def written(value: object) -> str:
    """Return a setting's value as text.

    >>> written(True), written([81, 122]), written(5e-4)
    ('yes', '81 and 122', '0.0005')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return f"{value:g}".replace("-", "−") if isinstance(value, float) else str(value)


def machine(record: Record) -> str:
    """Return processor, device and threads of a run.

    >>> from pathlib import Path
    >>> machine(Record(Path("a"), {"environment": {"processor": "x86_64", "threads": 2}}, ()))
    'x86_64, ?, 2 threads'
    """
    there = record.config["environment"]
    hardware = there.get("hardware", {})
    device, processes = hardware.get("device", "?"), hardware.get("processes", 1)
    threads = there.get("threads", "?")
    words = [str(there.get("processor", "?")), str(device), f"{threads} thread{'s' * (threads != 1)}"]
    return ", ".join([*words, *([f"{processes} processes"] if processes != 1 else [])])


def commit(record: Record) -> str:
    """Return the first digits of the commit, with a + if files had been changed since.

    >>> from pathlib import Path
    >>> commit(Record(Path("a"), {"environment": {"commit": "0123456789abcdef+"}}, ()))
    '0123456789+'
    """
    whole = record.config["environment"].get("commit")
    return "not recorded" if whole is None else whole[:10] + ("+" if whole.endswith("+") else "")


def angles_of(record: Record) -> list[AngleRecord]:
    """Return the angle records of a run; [] if it has none."""
    path = record.folder / ANGLES
    if not os.path.lexists(path):
        return []
    check_angles(record)
    try:
        return read_jsonl(path)
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8, it is corrupt") from None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    except (TypeError, RecursionError) as error:
        raise InputError(f"{path}: does not hold records of an AngleProbe ({error})") from None
