"""A file is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from prproduct.lab.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write under a temporary name beside `path`, and renamed at the end: no reader ever meets half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            os.chmod(temporary, 0o644)  # mkstemp's own files are for their owner alone
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
