"""Checkpoints: folders of safetensors and JSON, written atomically; nothing in them is unpickled.

    checkpoints/step-00001200/model.safetensors       weights and buffers
                              optimizer.safetensors   the tensors of the optimizer's state
                              state.json              everything else, and the sizes and sha256 of all three

A checkpoint is written under a name that begins with a dot, fsynced, and renamed; one that is deleted or replaced is
renamed first. So a folder with the name of a checkpoint is complete, and its checksums reveal later changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.optim import Optimizer

from prproduct.lab.errors import InputError
from prproduct.lab.files import as_json, check_file, read_bytes, read_json, sync, write_durably, writing
from prproduct.lab.runs import CHECKPOINTS, Record, difference

EPOCHS = ("last", "best")  # which checkpoint of a run is used; best by validation
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8,15})")
_REPLACED = ".replaced-"
_LARGEST = 64 << 30  # bytes of a file of tensors


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that a training needs to continue."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]  # as `pack_optimizer` returns them
    state: dict[str, Any]  # JSON: position, sums, the optimizer's numbers; under "run" the identity of its run


def save(folder: Path, step: int, checkpoint: Checkpoint, keep: Collection[int] = ()) -> Path:
    """Write the checkpoint of a step, then delete all others but those of the steps in `keep`; return its folder."""
    target, temporary = folder / f"step-{step:08d}", folder / f".writing-step-{step:08d}"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        clear(folder)
        temporary.mkdir()
        files = {_MODEL: _serialised(checkpoint.model), _OPTIMIZER: _serialised(checkpoint.optimizer)}
        for name, content in files.items():
            write_durably(temporary / name, content)
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        sizes = {name: len(content) for name, content in files.items()}
        checked = {"bytes": sizes, "sha256": {**sums, "state": _state_sum(checkpoint.state)}}
        state = {"state": checkpoint.state, **checked}
        write_durably(temporary / _STATE, as_json(state))
        sync(temporary)
        if target.exists():  # of an epoch that was not over at this step, or from before a resume from an earlier one
            target.rename(folder / f"{_REPLACED}{target.name}")
        temporary.rename(target)
        sync(folder)
        clear(folder)
        for other in steps(folder):
            if other != step and other not in keep:
                _remove(folder / f"step-{other:08d}")
    return target


def steps(folder: Path) -> list[int]:
    """Return the steps that have checkpoints, ascending.

    >>> steps(Path("/nowhere"))
    []
    """
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def load(folder: Path, step: int, identity: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read a checkpoint; InputError if it was changed or belongs to a run of another identity."""
    path = folder / f"step-{step:08d}"
    whole = read_json(path / _STATE, most=256 << 20)
    state, sums, sizes = whole.get("state"), whole.get("sha256"), whole.get("bytes", {})
    if not (isinstance(state, dict) and isinstance(sums, dict) and isinstance(sizes, dict)):
        raise _corrupt(path / _STATE)
    if sums.get("state") != _state_sum(state):
        raise _corrupt(path / _STATE)
    if identity is not None and "run" in state and (other := difference(state["run"], identity)):
        raise InputError(f"{path}: is a checkpoint of another run: {other}; move it away")
    return Checkpoint(_read(path / _MODEL, sums, sizes), _read(path / _OPTIMIZER, sums, sizes), state)


def step_of(record: Record, which: str) -> int:
    """Return the step of a run's last checkpoint, or of that of its best epoch by validation."""
    if which not in EPOCHS:
        raise InputError(f"the {which!r} epoch: choose {' or '.join(EPOCHS)}")
    place = record.folder / CHECKPOINTS
    known = steps(place)
    if not known:
        raise InputError(f"{place}: there is no checkpoint yet")
    if which == "last":
        return known[-1]
    best = load(place, known[-1], record.identity).state["position"]["best"]
    if best is None:
        raise InputError(f"{record.folder}: no epoch was chosen by validation; take the last")
    return int(best["step"])


def load_epoch(record: Record, which: str) -> Checkpoint:
    """Read the checkpoint that `step_of` names."""
    return load(record.folder / CHECKPOINTS, step_of(record, which), record.identity)


def restore(folder: Path) -> None:
    """Bring back a checkpoint that was being replaced by another of its step when a process was stopped."""
    for path in folder.glob(f"{_REPLACED}step-*"):
        target = path.with_name(path.name.removeprefix(_REPLACED))
        if not target.exists():
            with writing(target):
                path.rename(target)


def clear(folder: Path) -> None:
    """Delete checkpoints that were being written or deleted when a process was stopped."""
    for path in folder.glob(".*-step-*"):
        shutil.rmtree(path)


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state as named tensors and as JSON.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> pack_optimizer(optimizer)[0]
    {'0.momentum_buffer': tensor([1., 1.])}
    """
    whole = optimizer.state_dict()
    tensors, numbers = {}, {}
    for index, entries in whole["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, {"numbers": numbers, "param_groups": whole["param_groups"]}


def unpack_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Load the state that `pack_optimizer` returned into an optimizer of the same parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **rest["numbers"]}.items():
        index, name = key.split(".", 1)
        if isinstance(value, Tensor) and value.shape == parameters[int(index)].shape:
            value = torch.empty_like(parameters[int(index)], dtype=value.dtype).copy_(value)  # channels_last, too
        state.setdefault(int(index), {})[name] = value
    groups = [
        {name: tuple(value) if isinstance(group.get(name), tuple) else value for name, value in saved.items()}
        for group, saved in zip(optimizer.param_groups, rest["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _serialised(tensors: Mapping[str, Tensor]) -> bytes:
    # Contiguous clones: safetensors refuses tensors that share memory and other memory formats.
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def _read(path: Path, sums: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    size = check_file(path, most=_LARGEST)
    if size != sizes.get(path.name, size):
        raise _corrupt(path)
    content = read_bytes(path, most=size)
    if hashlib.sha256(content).hexdigest() != sums.get(path.name):
        raise _corrupt(path)
    try:
        return safetensors.torch.load(content)
    except SafetensorError:
        raise _corrupt(path) from None


def _state_sum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _corrupt(path: Path) -> InputError:
    return InputError(
        f"{path}: is not as it was written; move {path.parent.name} away to go on from an earlier checkpoint, "
        "or give --restart to train from the start"
    )


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint; renamed first, so that an interruption leaves no incomplete one under its name."""
    shutil.rmtree(checkpoint.rename(checkpoint.with_name(f".removing-{checkpoint.name}")))
