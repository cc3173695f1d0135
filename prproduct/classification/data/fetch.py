"""Downloads that go on where they were cut, and count only when the checksum is right.

Pooch, which verifies too, starts over after each cut; CIFAR's 160 MB come from a slow server.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from prproduct.classification.data.sources import Download, Source
from prproduct.lab.errors import InputError

ATTEMPTS = 4
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 18
Report = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if the server says
_BUSY = (429, 500, 502, 503, 504)
_CUT = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


def silent(name: str, done: int, total: int | None) -> None:
    """Report nothing."""


def fetch(source: Source, root: Path, report: Report = silent) -> None:
    """Download all files of a data set into a folder, which `locate.find` then searches."""
    for download in source.downloads:
        fetch_file(download, root / download.place, report)


def fetch_file(download: Download, target: Path, report: Report = silent) -> None:
    """Download one file. It gets its name when it is whole; until then it is NAME.part, which later calls continue."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):  # of several runs that start together, one fetches
            if not target.exists():
                _fetch_whole(download, target, report)
    except _CUT as error:
        raise InputError(f"{download.url} cannot be reached ({_reason(error)})") from None
    except OSError as error:
        raise InputError(f"{error.filename or target}: cannot be written ({error.strerror or error})") from None


def _fetch_whole(download: Download, target: Path, report: Report) -> None:
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        continued = part.exists() and part.stat().st_size > 0
        try:
            _append(download.url, part, lambda done, total: report(target.name, done, total))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _BUSY and attempt < ATTEMPTS:
                continue
            if error.code != 416:  # there is nothing behind the part: it may be the whole
                raise
        except _CUT:
            if attempt < ATTEMPTS:
                continue
            raise
        md5 = _md5(part)
        if md5 == download.md5:
            part.replace(target)
            return
        part.unlink()
        if not continued:  # a part may have been of something else; the whole is what the server has
            raise InputError(f"{download.url} gave a file with md5 {md5}, not {download.md5}; removed")
    raise InputError(f"{download.url} gave other files than the one with md5 {download.md5}; try again")


def _append(url: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Ask for what the part still lacks, and append it; from the start, if the server cannot begin in the middle."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "prproduct"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if response.status == 206 and begins else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            report(done, total)
            while block := response.read(BLOCK):
                file.write(block)
                done += len(block)
                report(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"cut off after {done:,} of {total:,} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)
