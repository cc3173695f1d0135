"""What pycocoevalcap bundles: METEOR, SPICE and the original tokenizer as Java programs, and the captions of COCO 2014.

Each program runs in a process of its own, started by these functions and ended before they return. None can deadlock:
input that is known beforehand goes through `communicate`, METEOR's requests and answers alternate, and stderr goes to a
file, not into a pipe that nobody reads.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from prproduct.captioning.metrics.ngram_metrics import Score, check_pairs
from prproduct.captioning.metrics.tokenizer import PUNCTUATION
from prproduct.lab.errors import InputError

CORENLP = ["stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"]
UTF8 = ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]  # whatever the locale
# SPICE's serializer uses reflection on classes that are closed since Java 17; older versions do not know the option.
OPENED = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/java.{p}=ALL-UNNAMED" for p in ("lang", "math", "util")),
]

NO_REASON = [  # lines that Java prints after the actual error
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
]


def tokenize_java(captions: Sequence[str]) -> list[str]:
    """Tokenize with the original program; `tokenizer.tokenize_all` does the same without Java."""
    command = [*_java("the java tokenizer", "512m"), "-cp", str(folder_of("tokenizer") / "stanford-corenlp-3.4.1.jar")]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    # All white space becomes single blanks: a caption of two lines would shift all captions after it.
    lines = "".join(" ".join(caption.split()) + "\n" for caption in captions)
    with _starting("the java tokenizer"):
        done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False)
    tokenized = done.stdout.decode().split("\n")[:-1]
    if done.returncode != 0 or len(tokenized) != len(captions):
        raise InputError(_failure("the java tokenizer", done.stderr))
    return [" ".join(token for token in line.split(" ") if token not in PUNCTUATION) for line in tokenized]


class Meteor:
    """A process of METEOR 1.5 inside a `with` block. It takes about 15 s to read its paraphrases, and at most 1 GB."""

    def __enter__(self) -> Meteor:
        folder = folder_of("meteor")
        # With the path of the paraphrases: METEOR cannot find them itself if the path has a blank.
        command = [*_java("METEOR", "1G"), "-jar", str(folder / "meteor-1.5.jar"), "-", "-", "-stdio"]
        command += ["-l", "en", "-norm", "-a", str(folder / "data" / "paraphrase-en.gz")]
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        try:
            with _starting("METEOR"):
                self._process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, encoding="utf-8"
                )
        except InputError:
            self._errors.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._errors, self._process:
            if kind is not None:
                self._process.kill()
            try:
                self._process.communicate(timeout=10)  # closes stdin, at which METEOR exits
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self._process.kill()

    def score(
        self,
        references: Sequence[Sequence[str]],
        candidates: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Score:
        """METEOR of tokenized captions; `progress` is called with the number of finished images."""
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
    """SPICE of tokenized captions; without two libraries that pycocoevalcap does not bundle, raises InputError."""
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
        request, response = Path(scratch) / "captions.json", Path(scratch) / "scores.json"
        request.write_text(json.dumps(rows))
        command = [*_java("SPICE", "4G"), *OPENED, "-jar", str(folder / "spice-1.0.jar"), str(request)]
        command += ["-out", str(response), "-subset", "-silent"]
        with _starting("SPICE"):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0 or not response.exists():
            raise InputError(_failure("SPICE", done.stderr))
        scores = {row["image_id"]: row["scores"]["All"]["f"] for row in json.loads(response.read_text())}
    each = np.array([scores[image] for image in range(len(rows))], np.float64)  # NaN where SPICE found no propositions
    return Score(float(each.mean()), each)


def _java(purpose: str, memory: str) -> list[str]:
    program = shutil.which("java")
    if program is None:
        raise InputError(
            f"{purpose} needs Java: install a runtime, for example with apt-get install default-jre-headless"
        )
    return [program, f"-Xmx{memory}", *UTF8]


@contextmanager
def _starting(purpose: str) -> Iterator[None]:
    """Turn an OSError of starting Java, such as a file that is no program of this machine, into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{purpose} cannot start Java: {error.filename}: {error.strerror}; install a runtime for this machine"
        ) from None


def folder_of(name: str) -> Path:
    """The path of a folder of pycocoevalcap, which is located without being imported."""
    package = importlib.util.find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        raise InputError(
            "METEOR, SPICE, the java tokenizer and COCO's captions come with pycocoevalcap, which is not installed: "
            "pip install 'prproduct[captions]'"
        )
    return Path(next(iter(package.submodule_search_locations))) / name


def _failure(program: str, errors: bytes) -> str:
    """An error message with the line of stderr that names the exception, otherwise its last line."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and line not in NO_REASON]
    reason = next(
        (line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "no reason given"
    )
    return f"{program} failed in Java: {reason}"


def coco_captions(split: str) -> dict[int, list[str]]:
    """The captions of COCO 2014, "train" (82,783 images) or "val" (40,504), by image id: SPICE's archive has them."""
    path, name = folder_of("spice") / "spice-1.0.jar", f"coco/annotations/captions_{split}2014.json"
    try:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read(name))
    except (OSError, KeyError, zipfile.BadZipFile):
        raise InputError(
            f"{path}: no {name} in it; pycocoevalcap 1.2 has one: pip install 'prproduct[captions]'"
        ) from None
    captions: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        captions[annotation["image_id"]].append(annotation["caption"])
    return captions
