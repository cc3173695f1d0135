"""The compiled code on disk: kept for the next process, by many at once, and never trusted when it is not whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = Path(__file__).parents[2] / "prproduct" / "kernels" / "compiler"
# A module of the package, without torch, whose import takes longest.
DOUBLE = """
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of

@range_pass(1)
def double(first, last, share, given):
    (address,) = integers(given)
    for k in range(first, last):
        at(address, k, one_of(given))[0] *= 2.0
"""
# It is run, and told whether its code was found or compiled.
SCRIPT = """
import numpy as np
from prproduct.kernels.compiler import machine_code
from prproduct.kernels.doubling import double
compiled, compile = [], machine_code._compiled
machine_code._compiled = lambda code: compiled.append(code) or compile(code)
x = np.ones(3)
double[8].call(1, 3, 0, double[8].pack(x.ctypes.data))
assert x.tolist() == [1.0, 2.0, 2.0], x
print("compiled" if compiled else "found")
"""


def start(site, home, script=SCRIPT, **more):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(home), **more}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, cwd=site, **pipes)


def result_of(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip()


@pytest.fixture
def installed(tmp_path):
    """A package with the compiler and one pass."""
    site = tmp_path / "site"
    kernels = site / "prproduct" / "kernels"
    shutil.copytree(COMPILER, kernels / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    for package in (kernels.parent, kernels):
        (package / "__init__.py").touch()
    (kernels / "doubling.py").write_text(DOUBLE)
    return site


def test_several_processes_at_once_then_one_that_finds_it(installed, tmp_path):
    running = [start(installed, tmp_path) for _ in range(3)]
    assert {result_of(process) for process in running} <= {"compiled", "found"}
    assert result_of(start(installed, tmp_path)) == "found"


def kept_in(folder):
    return sorted(path.name for path in folder.rglob("*.*"))


def test_it_is_kept_in_the_users_cache_and_nothing_beside_it(installed, tmp_path):
    home = tmp_path / "home"
    before = sorted(installed.rglob("*"))
    assert result_of(start(installed, home)) == "compiled"
    assert kept_in(home / ".cache" / "prproduct") == ["prproduct.kernels.doubling.double_64.o"]
    assert sorted(installed.rglob("*")) == before
    assert result_of(start(installed, home)) == "found"


@pytest.mark.parametrize("variable", ["PRPRODUCT_CACHE", "XDG_CACHE_HOME"])
def test_another_place_may_be_named(installed, tmp_path, variable):
    chosen = tmp_path / "chosen"
    for expected in ("compiled", "found"):
        assert result_of(start(installed, "/dev/null", **{variable: str(chosen)})) == expected
    assert len(kept_in(chosen)) == 1


def test_without_any_place_to_write_it_is_compiled_each_time(installed):
    for _ in range(2):
        assert result_of(start(installed, "/dev/null")) == "compiled"


@pytest.mark.parametrize("damage", [lambda code: code[:-7], lambda code: b"", lambda code: code[:-1] + b"?"])
def test_a_damaged_file_is_compiled_anew_and_mended(installed, tmp_path, damage):
    assert result_of(start(installed, tmp_path)) == "compiled"
    (file,) = (tmp_path / ".cache").rglob("*.o")
    file.write_bytes(damage(file.read_bytes()))
    assert [result_of(start(installed, tmp_path)) for _ in range(2)] == ["compiled", "found"]


def test_changed_sources_are_compiled_anew(installed, tmp_path):
    assert result_of(start(installed, tmp_path)) == "compiled"
    source = installed / "prproduct" / "kernels" / "doubling.py"
    source.write_text(source.read_text() + "# changed\n")
    assert result_of(start(installed, tmp_path)) == "compiled"


def test_code_of_sources_that_were_edited_meanwhile_is_not_kept(installed, tmp_path):
    """The running process may mix both; the next ones do not."""
    source = installed / "prproduct" / "kernels" / "doubling.py"
    edit = f"open({str(source)!r}, 'a').write('# edited')"
    before = "from prproduct.kernels.compiler.machine_code import _fingerprint; _fingerprint()"
    assert result_of(start(installed, tmp_path, script=f"{before}; {edit}; {SCRIPT}")) == "compiled"
    assert not list(tmp_path.rglob("*.o"))


def test_a_write_that_fails_leaves_nothing_behind(installed, tmp_path):
    full = "def replace(*paths): raise OSError(28, 'No space left on device')"
    script = f"import os\n{full}\nos.replace = replace\n{SCRIPT}"
    assert result_of(start(installed, tmp_path, script=script)) == "compiled"
    assert [path for path in (tmp_path / ".cache").rglob("*") if path.is_file()] == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_a_folder_that_others_can_write_to_is_not_trusted(installed, tmp_path):
    assert result_of(start(installed, tmp_path)) == "compiled"
    (file,) = (tmp_path / ".cache").rglob("*.o")
    assert file.parent.stat().st_mode & 0o077 == 0
    file.parent.chmod(0o777)
    assert result_of(start(installed, tmp_path)) == "compiled"


def test_a_home_by_its_sign_and_a_relative_cache(installed, tmp_path):
    result_of(start(installed, tmp_path, PRPRODUCT_CACHE="~/chosen"))
    assert len(kept_in(tmp_path / "chosen")) == 1
    result_of(start(installed, tmp_path, XDG_CACHE_HOME="beside"))  # by its specification, not valid
    assert len(kept_in(tmp_path / ".cache")) == 1


FORKS = """
import os, threading
from prproduct.kernels.compiler.entries import Pass
from prproduct.kernels.doubling import double
def compile():
    Pass(double.function, 1)[8]
stop = threading.Event()
def compile_on():
    while not stop.is_set():
        compile()
thread = threading.Thread(target=compile_on)
thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        compile()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_is_forked_while_another_thread_compiles(installed):
    assert result_of(start(installed, "/dev/null", script=FORKS)) == "done"
