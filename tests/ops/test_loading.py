"""A library that is missing, broken or of another version: plain torch serves, with one line that says why and how."""

import ctypes.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from prproduct.ops import kernels, triton_operators
from prproduct.products import PR

ROOT = Path(__file__).parents[2]
STEP = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import prproduct as pr
    layer = pr.nn.Linear(3, 2)
    for _ in range(2):
        layer(torch.ones(4, 3)).sum().backward()
from prproduct.ops import kernels
print(kernels.implementation(), "|", *(str(warning.message) for warning in caught))
"""


def run(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return result.stdout.strip().splitlines()[-1]


def test_the_library_is_there():
    assert run(STEP) == "C++ kernels |"


@pytest.mark.parametrize("broken", ["missing", "empty", "text", "truncated"])
def test_a_library_that_cannot_be_loaded_is_refused_with_one_warning(broken, tmp_path, monkeypatch):
    path = tmp_path / "_C.abi3.so"
    (built,) = (ROOT / "prproduct").glob("_C*.so")
    content = {"empty": b"", "text": b"no library", "truncated": built.read_bytes()[:100]}
    if broken in content:
        path.write_bytes(content[broken])
    monkeypatch.setenv("PRPRODUCT_LIBRARY", str(path))
    with pytest.warns(UserWarning, match=r"C\+\+ kernels cannot be used \(.*_C\.abi3\.so") as warned:
        assert not kernels.library.__wrapped__()
    assert len(warned) == 1


def test_where_the_library_is_another_one_a_warning_comes_once_and_plain_torch_serves(tmp_path):
    path = tmp_path / "_C.abi3.so"
    path.symlink_to(next(Path("/").glob(f"lib/*/{ctypes.util.find_library('m')}")))
    said = run(STEP, PRPRODUCT_LIBRARY=str(path))
    assert said.startswith("plain torch | prproduct's C++ kernels cannot be used (")
    assert said.count("cannot be used") == 1
    assert "pip install --no-build-isolation" in said


def wheel(tmp_path, library=None, **environment):
    """Built from a copy of what the package is made of, and unpacked; a given library is not compiled again."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    source = tmp_path / "source"
    shutil.copytree(ROOT / "prproduct", source / "prproduct", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    if library:
        compiled = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "prproduct"
        compiled.mkdir(parents=True)
        shutil.copy(library, compiled)
    subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(source)],
        check=True,
        env={**os.environ, **environment},
        capture_output=True,
    )
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "unpacked")
    return built, tmp_path / "unpacked"


@pytest.mark.slow
def test_one_wheel_serves_every_python_from_3_11_on(tmp_path):
    (library,) = (ROOT / "prproduct").glob("_C*.so")
    built, unpacked = wheel(tmp_path, library)
    assert "-cp311-abi3-" in built.name
    assert [path.name for path in (unpacked / "prproduct").glob("_C*")] == ["_C.abi3.so"]
    code = f"import sys; sys.path.insert(0, {str(unpacked)!r})" + STEP + "assert pr.__file__.startswith(sys.path[0])"
    assert run(code) == "C++ kernels |"


@pytest.mark.slow
def test_without_a_compiler_the_package_installs_and_says_what_is_missing(tmp_path):
    _, unpacked = wheel(tmp_path, CC="no-such-compiler", CXX="no-such-compiler")
    assert not list((unpacked / "prproduct").glob("_C*"))
    code = f"import sys; sys.path.insert(0, {str(unpacked)!r})" + STEP
    assert run(code).startswith("plain torch | prproduct's C++ kernels cannot be used (it was not built)")


def test_a_gpu_without_triton_is_said_once_and_plain_torch_serves(monkeypatch):
    """There is no such GPU here: the attempt to use it fails as it would with Triton missing."""

    def missing(device):
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(triton_operators, "try_on", missing)
    kernels.triton_serves.cache_clear()
    with pytest.warns(UserWarning, match=r"cannot be used on cuda:7 \(No module named 'triton'\): plain torch serves"):
        assert kernels.implementation("cuda:7") == "plain torch"
    assert kernels.implementation("cuda:7") == "plain torch"  # without another warning, which would be an error
    kernels.triton_serves.cache_clear()
    monkeypatch.setattr(triton_operators, "try_on", lambda device: None)
    assert kernels.implementation("cuda:7") == "Triton kernels"
    assert kernels.implementation("mps") == kernels.implementation("meta") == "plain torch"
    kernels.triton_serves.cache_clear()


def test_triton_is_not_given_gradients_with_the_negative_bit(monkeypatch):
    """The gradient of an imaginary part may be one: memory has the negative of its values, and Triton reads memory."""
    monkeypatch.setattr(kernels, "triton_serves", lambda device: True)
    grad = torch.ones(2, 3, dtype=torch.complex64, device="meta").conj().imag
    with torch.no_grad():
        assert grad.is_neg()
        assert not kernels.serves(PR(), grad, torch.ones(3, 3, device="meta"))
        assert kernels.serves(PR(), grad.resolve_neg(), torch.ones(3, 3, device="meta"))


def test_running_out_of_memory_at_the_first_kernel_is_torchs_error(monkeypatch):
    def full(device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(triton_operators, "try_on", full)
    kernels.triton_serves.cache_clear()
    with pytest.raises(torch.OutOfMemoryError):
        kernels.implementation("cuda:7")
    monkeypatch.setattr(triton_operators, "try_on", lambda device: None)
    assert kernels.implementation("cuda:7") == "Triton kernels"  # the next time there may be room
    kernels.triton_serves.cache_clear()
