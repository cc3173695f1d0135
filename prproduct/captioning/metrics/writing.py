"""A file is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from prproduct.lab.errors import InputError


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write under a temporary name beside `path`, then rename, so that no reader ever meets half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o644)  # mkstemp's own files are for their owner alone
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
