"""METEOR, SPICE and the original tokenizer: the Java programs that come with pycocoevalcap.

Each runs in a process of its own, started by these functions and ended before they return. Nothing can wait for ever:
what is written at once goes through `communicate`, METEOR's questions and answers alternate, and error output goes to a
file, not into a pipe that nobody reads.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from prproduct.captioning.metrics.ngrams import Score, check_pairs
from prproduct.captioning.metrics.tokenizer import PUNCTUATION
from prproduct.lab.errors import InputError

CORENLP = ["stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"]
UTF8 = ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]  # whatever the locale
# SPICE's serializer looks into classes that Java has closed since version 17; older Javas do not know the option.
OPENED = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/java.{p}=ALL-UNNAMED" for p in ("lang", "math", "util")),
]


def tokenize_java(captions: Sequence[str]) -> list[str]:
    """What `tokenizer.tokenize_all` does, by the original program."""
    command = [*_java("the java tokenizer", "512m"), "-cp", str(folder_of("tokenizer") / "stanford-corenlp-3.4.1.jar")]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    # Every kind of line break and blank is one blank: a caption that became two lines would shift all that follow.
    lines = "".join(" ".join(caption.split()) + "\n" for caption in captions)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False)
    tokenized = done.stdout.decode().split("\n")[:-1]
    if done.returncode != 0 or len(tokenized) != len(captions):
        raise InputError(_failure("the java tokenizer", done.stderr))
    return [" ".join(token for token in line.split(" ") if token not in PUNCTUATION) for line in tokenized]


class Meteor:
    """METEOR 1.5 while a `with` block lasts; it reads its paraphrases for some 15 s first, and takes 1 GB at most."""

    def __enter__(self) -> Meteor:
        folder = folder_of("meteor")
        # The place of the paraphrases is given: METEOR's own guess fails where a folder's name has a blank.
        command = [
            *_java("METEOR", "1G"),
            "-jar",
            str(folder / "meteor-1.5.jar"),
            "-",
            "-",
            "-stdio",
            "-l",
            "en",
            "-norm",
        ]
        command += ["-a", str(folder / "data" / "paraphrase-en.gz")]
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=10)  # closes its input, upon which it ends
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        finally:
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                assert stream is not None
                stream.close()

    def score(
        self,
        references: Sequence[Sequence[str]],
        candidates: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Score:
        """METEOR of tokenized candidates; `progress` is called with the number of images done."""
        check_pairs(references, candidates)
        statistics = []
        for captions, candidate in zip(references, candidates, strict=True):
            fields = [" ".join(caption.replace("|||", "").split()) for caption in (*captions, candidate)]
            self._send("SCORE", fields)
            statistics.append(self._receive())
            progress(len(statistics))
        self._send("EVAL", statistics)
        each = np.array([float(self._receive()) for _ in candidates])
        return Score(float(self._receive()), each)

    def _send(self, order: str, fields: Sequence[str]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ||| ".join([order, *fields]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise InputError(self._ended()) from None

    def _receive(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise InputError(self._ended())
        return line.strip()

    def _ended(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return _failure("METEOR", self._errors.read())


def spice(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> Score:
    """SPICE of tokenized candidates; it needs two libraries that pycocoevalcap has not, and says so."""
    check_pairs(references, candidates)
    folder = folder_of("spice")
    missing = [name for name in CORENLP if not (folder / "lib" / name).exists()]
    if missing:
        raise InputError(
            f"SPICE needs {' and '.join(missing)} in {folder / 'lib'}: "
            "take them from https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
        )
    rows = [
        {"image_id": image, "test": candidate, "refs": list(captions)}
        for image, (captions, candidate) in enumerate(zip(references, candidates, strict=True))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch) / "captions.json", Path(scratch) / "scores.json"
        asked.write_text(json.dumps(rows))
        command = [*_java("SPICE", "4G"), *OPENED, "-jar", str(folder / "spice-1.0.jar"), str(asked)]
        command += ["-out", str(answered), "-subset", "-silent"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0 or not answered.exists():
            raise InputError(_failure("SPICE", done.stderr))
        scores = {row["image_id"]: row["scores"]["All"]["f"] for row in json.loads(answered.read_text())}
    each = np.array([scores[image] for image in range(len(rows))], np.float64)  # NaN for none
    return Score(float(each.mean()), each)


def _java(purpose: str, memory: str) -> list[str]:
    program = shutil.which("java")
    if program is None:
        raise InputError(
            f"{purpose} needs Java: install a runtime, for example with apt-get install default-jre-headless"
        )
    return [program, f"-Xmx{memory}", *UTF8]


def folder_of(name: str) -> Path:
    """A folder of pycocoevalcap, which is found without being imported."""
    package = importlib.util.find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        raise InputError(
            "METEOR, SPICE and the java tokenizer come with pycocoevalcap: pip install 'prproduct[captions]'"
        )
    return Path(next(iter(package.submodule_search_locations))) / name


def _failure(program: str, errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    reason = next(
        (line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "no reason given"
    )
    return f"{program} failed in Java: {reason}"
