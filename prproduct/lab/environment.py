"""The versions, commit, command and machine of a run, recorded in config.json; whether this is its first process."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import prproduct

_PACKAGES = ("numpy", "lightning-fabric", "safetensors")


def environment() -> dict[str, Any]:
    """Return versions, commit, command and machine.

    >>> environment()["versions"]["torch"] == torch.__version__
    True
    """
    versions = {"python": platform.python_version(), "prproduct": prproduct.__version__, "torch": torch.__version__}
    for package in _PACKAGES:
        versions[package] = metadata.version(package)
    name = Path(sys.argv[0]).name
    return {
        "versions": versions,
        "commit": commit(),
        "command": shlex.join([name if name != "__main__.py" else "prproduct", *sys.argv[1:]]),
        "system": platform.platform(),
        "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def is_first_process() -> bool:
    """Return True in the first process of a training, also before the process group exists.

    >>> is_first_process()
    True
    """
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def commit() -> str | None:
    """Return the commit of the running code, with "+" if files were changed since; None outside of its repository."""
    folder = Path(prproduct.__file__).parent
    # An installed copy may lie inside of another repository, where git does not track this file.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{_git(folder, 'rev-parse', 'HEAD')}{'+' if changed else ''}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
