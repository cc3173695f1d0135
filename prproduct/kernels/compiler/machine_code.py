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

_lock = threading.Lock()  # backward may run in several threads at once
_engines: list[Any] = []  # that hold the functions
_PACKAGE = __name__.partition(".")[0]


def _renew_lock() -> None:
    """A forked child has it as it was, and not the thread that held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def address_of(name: str, code: Callable[[], str]) -> int:
    """Of the function of this name, from disk or compiled now from its intermediate code."""
    with _lock:
        machine_code = _kept(name) or _keep(name, _compiled(code()))
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
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PRPRODUCT_CACHE") or Path(cache) / "prproduct") / _fingerprint()


@functools.cache
def _fingerprint() -> str:
    """Of all that machine code depends on."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(source.read_bytes())
    processor = (_target().triple, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    digest.update(repr((llvmlite.__version__, binding.llvm_version_info, *processor)).encode())
    return digest.hexdigest()[:16]


_CHECKSUM = hashlib.sha256().digest_size


def _kept(name: str) -> bytes | None:
    """What is on disk, if it is whole."""
    try:
        found = (_folder() / f"{name}.o").read_bytes()
    except (OSError, RuntimeError):  # nothing there, or no home
        return None
    return found[_CHECKSUM:] if hashlib.sha256(found[_CHECKSUM:]).digest() == found[:_CHECKSUM] else None


def _keep(name: str, machine_code: bytes) -> bytes:
    """Write it to disk if we can, and if it is of our sources: others may change."""
    if not name.startswith(f"{_PACKAGE}."):
        return machine_code
    with contextlib.suppress(OSError, RuntimeError):
        _folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=_folder(), delete=False) as file:
            file.write(hashlib.sha256(machine_code).digest() + machine_code)
        os.replace(file.name, _folder() / f"{name}.o")
    return machine_code
