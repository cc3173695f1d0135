"""Downloads from a server of the test's own: whole, cut off, continued, wrong, impossible."""

import gzip
import hashlib
import http.server
import resource
import threading
from dataclasses import replace

import cifar_files
import pytest

from prproduct.classification.data import dataset, fetch, locate, sources
from prproduct.classification.data.sources import Download
from prproduct.lab.errors import InputError

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes: several blocks


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; `cut` of the first answers stop in the middle, `ranges` says whether it can begin there."""

    content, ranges, cut, status = CONTENT, True, 0, None
    asked: list


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if server.status or begin >= len(server.content):
            self.send_error(server.status or 416)
            return
        rest = server.content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.cut > 0:
            server.cut -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def download(server, content=CONTENT):
    url = f"http://127.0.0.1:{server.server_port}/file.bin"
    return Download(url, hashlib.md5(content).hexdigest(), "file.bin")


def test_a_file_comes_whole_and_its_progress_is_told(server, tmp_path):
    told = []
    fetch.fetch_file(download(server), tmp_path / "new" / "file.bin", lambda *report: told.append(report))
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert told[0] == ("file.bin", 0, len(CONTENT))
    assert told[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"kept")
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert server.asked == []


def test_a_cut_download_goes_on_where_it_was_cut(server, tmp_path):
    server.cut = 2
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=512000-", "bytes=768000-"]


def test_a_later_call_goes_on_with_what_an_earlier_one_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    server.cut = 1
    with pytest.raises(InputError, match="cut off after 512,000 of 1,024,000 bytes"):
        fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=512000-"
    assert not (tmp_path / "file.bin.part").exists()


def test_a_server_that_cannot_continue_starts_over(server, tmp_path):
    server.ranges, server.cut = False, 1
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_taken(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("stale", [b"of another file", b"\0" * len(CONTENT), b"\0" * (len(CONTENT) + 5)])
def test_a_part_of_something_else_is_thrown_away(server, tmp_path, stale):
    (tmp_path / "file.bin.part").write_bytes(stale)
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_file_is_refused_and_not_kept(server, tmp_path):
    with pytest.raises(InputError, match=r"file\.bin gave a file with md5 .*, not .*; removed"):
        fetch.fetch_file(download(server, b"what we wanted"), tmp_path / "file.bin")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_a_file_that_is_gone_is_not_asked_for_again(server, tmp_path):
    server.status = 404
    with pytest.raises(InputError, match=r"cannot be reached \(Not Found\)"):
        fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again_and_then_given_up(server, tmp_path):
    server.status = 503
    with pytest.raises(InputError, match="cannot be reached"):
        fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert len(server.asked) == fetch.ATTEMPTS


def test_a_folder_that_cannot_be_written_is_one_line(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="below: cannot be written"):
        fetch.fetch_file(download(server), tmp_path / "file" / "below" / "file.bin")


def test_a_full_disk_is_one_line_and_the_download_goes_on_later(server, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))  # stands for a full disk
    try:
        with pytest.raises(InputError, match=r"file\.bin.*: cannot be written"):
            fetch.fetch_file(download(server), tmp_path / "file.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "file.bin").exists()
    fetch.fetch_file(download(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked[1].startswith("bytes=")


def test_of_several_that_start_together_one_fetches(server, tmp_path):
    def fetch_one():
        fetch.fetch_file(download(server), tmp_path / "file.bin")

    threads = [threading.Thread(target=fetch_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.asked == [None]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.fixture
def cifar100(server, tmp_path, monkeypatch):
    """A small CIFAR-100 whose original place is the test's server."""
    source, contents, *_ = cifar_files.small_cifar100()
    server.content = cifar_files.tar_gz("cifar-100-python", contents[0][0] | contents[0][1])
    original = download(server, server.content)._replace(place="cifar-100-python.tar.gz")
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, downloads=(original,)))
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)


def test_a_data_set_that_is_nowhere_is_fetched_into_the_cache_and_found_there_again(server, tmp_path, cifar100):
    first = dataset.load("cifar100")
    assert (tmp_path / "home" / "prproduct" / "cifar-100-python.tar.gz").is_file()
    assert dataset.load("cifar100", download=False).fingerprint == first.fingerprint
    assert len(server.asked) == 1


def test_files_behind_an_interrupted_one_are_fetched_later(tmp_path, monkeypatch):
    source, (train, test) = cifar_files.small_fashion()
    packed = {f"{name}.gz": gzip.compress(content) for name, content in (train | test).items()}
    downloads = [
        Download(f"http://its.authors/{name}", hashlib.md5(content).hexdigest(), f"fashion-mnist/{name}")
        for name, content in packed.items()
    ]
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", replace(source, downloads=tuple(downloads)))
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)
    asked = []

    def append(url, part, report):
        asked.append(url.rsplit("/", 1)[1])
        if len(asked) == 2:
            raise KeyboardInterrupt
        part.write_bytes(packed[asked[-1]])

    monkeypatch.setattr(fetch, "_append", append)
    with pytest.raises(KeyboardInterrupt):
        dataset.load("fashion-mnist")
    assert len(dataset.load("fashion-mnist").train_images) == 30
    first, second, *others = packed
    assert asked == [first, second, second, *others]


def test_without_network_one_line_says_what_to_put_where(server, cifar100):
    server.status = 404
    with pytest.raises(
        InputError, match=r"^cifar100 is not in .*: put cifar-100-python\.tar\.gz .*cannot be reached"
    ) as e:
        dataset.load("cifar100")
    assert "\n" not in str(e.value)


def test_official_addresses_are_whole():
    for source in sources.SOURCES.values():
        assert bool(source.layouts) == bool(source.downloads)
        for original in source.downloads:
            assert original.url.startswith(("https://", "http://fashion-mnist.s3-website"))
            assert len(original.md5) == 32
            found = [layout for layout in source.layouts if original.place == layout.archive]
            assert found or original.place.startswith(f"{source.layouts[0].folders[0]}/")
