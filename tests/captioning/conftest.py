"""The command line as functions, ten pictures, and runs whose captions are known: all red, all green, all blue."""

import pytest
from painted_pictures import CONFIG, prepare, tiny
from small_dataset import run
from small_pictures import content

from prproduct import cli
from prproduct.captioning import encoder
from prproduct.captioning.configuration import CaptionerConfig


@pytest.fixture
def tiny_encoders(monkeypatch):
    """Networks of timm are the tiny encoder."""
    monkeypatch.setitem(encoder.LIBRARIES, "timm", tiny)


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A folder with pictures, captions, features and a run of each of two products."""
    folder = tmp_path_factory.mktemp("lab")
    what = prepare(folder)
    for product in ("p", "pr"):
        run(CaptionerConfig(**{**vars(CONFIG), "product": product}), folder / product, what)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Ten pictures."""
    (tmp_path / "pictures").mkdir()
    for number in range(10):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(content(number))
    return tmp_path / "pictures"


@pytest.fixture
def command(capsys):
    """Calls `prproduct`: exit status, stdout, stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main([*map(str, words)])
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def caption(command):
    """Calls `prproduct caption`: exit status, lines of stdout, lines of stderr."""

    def call(*words):
        status, out, err = command("caption", *words)
        return status, out.splitlines(), err.splitlines()

    return call
