"""The Java programs: METEOR's numbers, and that none of them can hang, leak or fail in riddles."""

import shutil
import sys

import numpy as np
import pytest

from prproduct.captioning.metrics import java
from prproduct.lab.errors import InputError

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: apt-get install default-jre-headless")

REFERENCES = [["a cat sits on a mat", "the cat sat"], ["two dogs"], ["ein hund | || über"]]
CANDIDATES = ["a cat on a carpet", "", "über ||| ein hund"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a Python program in the place of Java."""

    def install(text):
        path = tmp_path / "bin" / "java"
        path.parent.mkdir()
        path.write_text(f"#!{sys.executable}\nimport json, sys, time\n{text}")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent))

    return install


@pytest.mark.slow
@needs_java  # the figures are pycocoevalcap's own, without the separator ||| in the third caption
def test_meteor_gives_its_known_scores_from_a_folder_with_blanks_in_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "a folder" / "meteor"
    shutil.copytree(java.folder_of("meteor"), folder)
    monkeypatch.setattr(java, "folder_of", lambda name: folder)
    done = []
    with java.Meteor() as meteor:
        total, each = meteor.score(REFERENCES, CANDIDATES, done.append)
        again, _ = meteor.score(REFERENCES[:1], CANDIDATES[:1])
        process = meteor._process
    assert process.returncode == 0, "it ends by itself when nothing more is asked"
    np.testing.assert_allclose(each, [0.24814008416744182, 0, 0.24147851519511532], rtol=0, atol=1e-12)
    assert again == pytest.approx(each[0])
    assert done == [1, 2, 3]
    assert total == pytest.approx(0.22003111879994203, abs=1e-12)


@pytest.mark.slow
@needs_java
def test_line_breaks_within_a_caption_do_not_shift_the_others():
    captions = ["a\rcat", "", "two\u2028dogs\x85run", "three\x0c\x0bmen"]
    assert java.tokenize_java(captions) == ["a cat", "", "two dogs run", "three men"]


@pytest.mark.slow
@needs_java
def test_the_original_tokenizer_reads_utf_8_in_any_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    assert java.tokenize_java(["Über 猫"]) == ["über 猫"]


def test_meteor_that_ends_early_is_one_line_with_its_reason(program):
    program("print('Exception in thread main: out of memory', file=sys.stderr); sys.exit(1)")
    with (
        pytest.raises(InputError, match="METEOR failed in Java: Exception in thread main: out of memory"),
        java.Meteor() as meteor,
    ):
        meteor.score([["a"]] * 10000, ["a"] * 10000)


def test_meteor_that_floods_its_error_output_does_not_hang(program):
    program(
        """
sys.stderr.write("x" * 1_000_000)
for line in sys.stdin:
    print("\\n".join(["0.5"] * (2 if line.startswith("EVAL") else 1)), flush=True)
"""
    )
    with java.Meteor() as meteor:
        assert meteor.score([["a"]], ["a"]).total == 0.5


def test_meteor_is_killed_when_the_work_is_interrupted(program):
    program("time.sleep(1000)")
    with pytest.raises(KeyboardInterrupt), java.Meteor() as meteor:
        raise KeyboardInterrupt
    assert meteor._process.returncode == -9


def test_the_tokenizer_that_loses_a_line_is_refused(program):
    program("print('a')")
    with pytest.raises(InputError, match="the java tokenizer failed in Java"):
        java.tokenize_java(["a", "b"])


def test_without_java_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"METEOR needs Java: .*apt-get install default-jre-headless"), java.Meteor():
        pass
    with pytest.raises(InputError, match="the java tokenizer needs Java"):
        java.tokenize_java(["a"])


@pytest.mark.parametrize("use", [lambda: java.tokenize_java(["a"]), lambda: java.Meteor().__enter__()])
def test_a_java_that_is_no_program_is_one_line(monkeypatch, tmp_path, use):
    (tmp_path / "java").write_bytes(b"\x00 of another machine")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"cannot start Java: .*/java: Exec format error; install"):
        use()


def test_a_java_that_refuses_its_options_says_which(program):
    program("sys.exit('Invalid maximum heap size: -Xmx1G\\nError: Could not create the Java Virtual Machine.')")
    with pytest.raises(InputError, match="METEOR failed in Java: Invalid maximum heap size"), java.Meteor() as meteor:
        meteor.score([["a"]], ["a"])


class TestSpice:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "spice"
        (folder / "lib").mkdir(parents=True)
        monkeypatch.setattr(java, "folder_of", lambda name: folder)
        return folder

    def test_missing_libraries_are_named_with_their_place(self, folder):
        with pytest.raises(InputError, match=r"stanford-corenlp-3.6.0.jar and .*-models.jar in .*spice/lib: take them"):
            java.spice([["a"]], ["a"])

    def put_libraries(self, folder):
        for name in java.CORENLP:
            (folder / "lib" / name).write_bytes(b"")

    def test_scores_are_read_by_image_and_averaged(self, folder, program):
        """SPICE itself cannot run without those libraries; this holds how it is called and how its file is read."""
        self.put_libraries(folder)
        program(
            """
asked, out = sys.argv[sys.argv.index("-jar") + 2], sys.argv[sys.argv.index("-out") + 1]
rows = json.load(open(asked))
assert sys.argv[sys.argv.index("-jar") + 1].endswith("spice-1.0.jar") and "-subset" in sys.argv
scores = {1: 0.25, 2: 0.75}
answer = [{"image_id": r["image_id"], "scores": {"All": {"f": scores[len(r["refs"])]}}} for r in reversed(rows)]
json.dump(answer, open(out, "w"))
"""
        )
        total, each = java.spice([["a", "b"], ["ü"]], ["a", "b"])
        assert (total, each.tolist()) == (0.5, [0.75, 0.25])

    def test_its_java_error_is_one_line(self, folder, program):
        self.put_libraries(folder)
        program("print('  at x', 'java.lang.Error: no memory', '  at y', sep='\\n', file=sys.stderr); sys.exit(1)")
        with pytest.raises(InputError, match=r"^SPICE failed in Java: java\.lang\.Error: no memory$"):
            java.spice([["a"]], ["a"])


def test_without_pycocoevalcap_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'prproduct\[captions\]'"):
        java.folder_of("meteor")


def test_the_folder_is_where_pycocoevalcap_is():
    assert (java.folder_of("meteor") / "meteor-1.5.jar").exists()
    assert (java.folder_of("spice") / "spice-1.0.jar").exists()
