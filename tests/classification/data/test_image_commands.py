"""`prproduct data`, as typed."""

import cifar_files
import pytest

from prproduct import cli
from prproduct.classification.data import load, locate, sources


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["data", *map(str, words)])
    streams = capsys.readouterr()
    return end.value.code, streams.out, streams.err


def small(monkeypatch, tmp_path):
    """A small CIFAR-100 with its own mean and deviation, in a folder."""
    from dataclasses import replace

    from prproduct.classification.data.dataset import channel_statistics

    source, contents, *_ = cifar_files.small_cifar100()
    cifar_files.put(tmp_path / "cifar-100-python", contents[0][0] | contents[0][1])
    monkeypatch.setitem(sources.SOURCES, "cifar100", source)
    data = load("cifar100", tmp_path)
    mean, std = channel_statistics(data.train_images)
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, mean=mean, std=std))
    return data


def test_list_says_where_each_is(capsys, tmp_path, monkeypatch):
    small(monkeypatch, tmp_path)
    status, out, _ = run(capsys, "list", "--data-dir", tmp_path)
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert list(rows) == list(sources.SOURCES)
    assert "in scikit-learn" in rows["digits"]
    assert str(tmp_path / "cifar-100-python") in rows["cifar100"]
    assert "not here: prproduct data fetch cifar10" in rows["cifar10"]


@pytest.mark.parametrize("command", ["verify", "fetch"])
def test_verify_reads_everything_and_fetch_verifies_what_is_there(capsys, tmp_path, monkeypatch, command):
    data = small(monkeypatch, tmp_path)
    status, out, _ = run(capsys, command, "cifar100", "--data-dir", tmp_path)
    assert status == 0
    assert data.fingerprint in out
    assert "(200, 3, 32, 32), verified" in out


def test_verify_refuses_a_broken_file_in_one_line(capsys, tmp_path, monkeypatch):
    small(monkeypatch, tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(b"")
    status, out, err = run(capsys, "verify", "cifar100", "--data-dir", tmp_path)
    assert (status, out) == (2, "")
    assert err.startswith(f"prproduct: {tmp_path}/cifar-100-python/test: truncated, corrupt or another file")
    assert err.count("\n") == 1


def test_fetch_brings_the_data_into_the_folder_given_with_a_bar(capsys, tmp_path, monkeypatch):
    from dataclasses import replace

    from prproduct.classification.data import fetch

    small(monkeypatch, tmp_path / "original")
    source, place = sources.SOURCES["cifar100"], tmp_path / "new"
    place.mkdir()
    files = {path.name: path.read_bytes() for path in (tmp_path / "original" / "cifar-100-python").iterdir()}
    packed = cifar_files.tar_gz("cifar-100-python", files)
    original = source.downloads[0]._replace(md5=cifar_files.official({"": packed})[0].md5)
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, downloads=(original,)))

    def append(url, part, report):  # the network's part; test_image_fetch.py has a server
        assert url == original.url
        part.write_bytes(packed)
        report(len(packed), len(packed))

    monkeypatch.setattr(fetch, "_append", append)
    monkeypatch.setenv("FORCE_COLOR", "1")  # which Rich takes for a terminal
    status, out, err = run(capsys, "fetch", "cifar100", "--data-dir", place)
    assert status == 0
    assert str(place / "cifar-100-python.tar.gz") in out
    assert "cifar-100-python.tar.gz" in err


def test_fetch_without_network_says_what_to_put_where(capsys, monkeypatch):
    from dataclasses import replace

    unreachable = sources.CIFAR10.downloads[0]._replace(url="http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setitem(sources.SOURCES, "cifar10", replace(sources.CIFAR10, downloads=(unreachable,)))
    status, out, err = run(capsys, "fetch", "cifar10")
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("prproduct: cifar10 is not in ")
    assert "put cifar-10-binary.tar.gz" in last
    assert "cannot be reached" in last


def test_digits_are_always_there(capsys):
    status, out, _ = run(capsys, "fetch", "digits")
    assert status == 0
    assert "(1442, 1, 8, 8), verified" in out
