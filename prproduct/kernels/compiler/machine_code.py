"""From LLVM's intermediate code to a function's address, and where machine code is kept for the next process.

It is kept in the user's cache folder, or where `PRPRODUCT_CACHE` says: in a folder for these very sources, this LLVM
and this processor, one file for each function, written under another name first. A file is trusted only with its
checksum. Where nothing can be written, each process compiles for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding

_lock = threading.Lock()  # of LLVM, as backward may run in several threads at once
_engines: list[Any] = []  # that hold the functions
_KERNELS = Path(__file__).parents[1]

if hasattr(os, "register_at_fork"):  # no child is to inherit LLVM in the middle of something
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def address_of(name: str, code: Callable[[], str]) -> int:
    """Of the function of this name, from disk or compiled now from its intermediate code."""
    with _lock:
        machine_code = _read(name)
        if machine_code is None:
            machine_code = _compiled(code())
            _write(name, machine_code)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target())
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        _engines.append(engine)
        return int(engine.get_function_address(name))


@functools.cache
def _target() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(binding.get_host_cpu_name(), features, opt=3, jit=True)


def _compiled(code: str) -> bytes:
    """The object file."""
    module = binding.parse_assembly(code)
    module.triple, module.data_layout = _target().triple, str(_target().target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = binding.create_pass_builder(_target(), options)
    builder.getModulePassManager().run(module, builder)
    return bytes(_target().emit_object(module))


@functools.cache
def _folder() -> Path:
    chosen, cache = os.environ.get("PRPRODUCT_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    beside = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return (Path(chosen).expanduser().absolute() if chosen else beside / "prproduct") / _fingerprint()


@functools.cache
def _fingerprint() -> str:
    return _fingerprint_now()


def _fingerprint_now() -> str:
    """Of all that machine code depends on."""
    sources = {str(path.relative_to(_KERNELS)): path.read_bytes() for path in sorted(_KERNELS.rglob("*.py"))}
    compiler = (llvmlite.__version__, binding.llvm_version_info, _target().triple)
    processor = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return hashlib.sha256(repr((sources, compiler, processor)).encode()).hexdigest()[:16]


_CHECKSUM = hashlib.sha256().digest_size


def _read(name: str) -> bytes | None:
    """What is on disk, if it is whole, and if nobody else could have written it."""
    try:
        folder = _folder()
        found = (folder / f"{name}.o").read_bytes() if _is_safe(folder.stat()) else b""
    except (OSError, RuntimeError):  # nothing there, or no home
        return None
    return found[_CHECKSUM:] if hashlib.sha256(found[_CHECKSUM:]).digest() == found[:_CHECKSUM] else None


def _is_safe(folder: os.stat_result) -> bool:
    """It is run as it is: so it has to be the user's own folder, or root's."""
    return not hasattr(os, "getuid") or (folder.st_uid in (os.getuid(), 0) and not folder.st_mode & 0o022)


def _write(name: str, machine_code: bytes) -> None:
    """If we can, and if it is of the sources that the folder stands for: others', and edited ones, change."""
    if not name.startswith("prproduct.kernels.") or _fingerprint_now() != _fingerprint():
        return
    with contextlib.suppress(OSError, RuntimeError):
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=_folder())
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(machine_code).digest() + machine_code)
            os.replace(written, _folder() / f"{name}.o")
        except OSError:
            os.unlink(written)
            raise
