"""Downloads of data sets: resumed where the connection was lost, verified by checksum, with progress bars.

Pooch verifies too, but starts again after each lost connection, and CIFAR's 160 MB come from a slow server.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from prproduct.classification.data.sources import Download, Source
from prproduct.lab.errors import InputError

ATTEMPTS = 4
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 18
Report = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes if the server says
_BUSY = (429, 500, 502, 503, 504)  # HTTP statuses after which a request is tried again
_CUT = (  # errors of a lost or refused connection
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
)


def silent(name: str, done: int, total: int | None) -> None:
    """Show no progress."""


@contextmanager
def download_bars() -> Iterator[Report]:
    """Yield a `report` function for `load` that shows a bar for each file that is downloaded, if stderr is a terminal.

    >>> from prproduct.classification.data import load
    >>> with download_bars() as report:
    ...     data = load("digits", report=report)
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    tasks: dict[str, TaskID] = {}

    def report(name: str, done: int, total: int | None) -> None:
        bars.start()  # no effect if they run
        if name not in tasks:
            tasks[name] = bars.add_task(name)
        bars.update(tasks[name], completed=done, total=total)
        if bars.finished:
            bars.stop()  # the bars of the training follow

    try:
        yield report
    finally:
        bars.stop()


def fetch(source: Source, root: Path, report: Report = silent) -> None:
    """Download all files of a data set into the folder `root`, where `locate.find` finds them."""
    for download in source.downloads:
        fetch_file(download, root / download.place, report)


def fetch_file(download: Download, target: Path, report: Report = silent) -> None:
    """Download one file as NAME.part, which later calls continue, and rename it once its checksum is right."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):  # several runs may start together
            if not target.exists():
                _fetch_whole(download, target, report)
    except _CUT as error:
        raise InputError(f"{download.url} cannot be reached ({_reason(error)})") from None
    except OSError as error:
        raise InputError(f"{error.filename or target}: cannot be written ({error.strerror or error})") from None


def _fetch_whole(download: Download, target: Path, report: Report) -> None:
    """Download one file, in up to `ATTEMPTS` requests that each continue where the one before was cut off."""
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        continued = part.exists() and part.stat().st_size > 0
        try:
            _append(download.url, part, lambda done, total: report(target.name, done, total))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _BUSY and attempt < ATTEMPTS:
                continue
            if error.code != 416:  # range not satisfiable: the part may be complete
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
        if not continued:  # an earlier part may have been of another file; this one is all the server's
            raise InputError(f"{download.url} gave a file with md5 {md5}, not {download.md5}; removed")
    raise InputError(f"{download.url} gave other files than the one with md5 {download.md5}; try again")


def _append(url: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Request the missing bytes and append them to `part`; if the server ignores the range, write from the start."""
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
