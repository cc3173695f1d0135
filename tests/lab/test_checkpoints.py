"""Checkpoints: whole or not there, nothing in them is run, and what was changed is refused."""

import errno
import hashlib
import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save as serialised

from prproduct.lab import checkpoints
from prproduct.lab.checkpoints import Checkpoint, pack_optimizer, unpack_optimizer
from prproduct.lab.errors import InputError
from prproduct.lab.runs import Record


def checkpoint(value=1.0):
    return Checkpoint({"w": torch.full((3,), value)}, {"0.momentum_buffer": torch.ones(3)}, {"position": {"epoch": 2}})


def test_what_was_saved_is_loaded(tmp_path):
    saved = Checkpoint(
        {"half": torch.ones(2, dtype=torch.bfloat16), "count": torch.tensor(7), "none": torch.empty(0, 3)},
        {},
        {"sum": 0.1 + 0.2, "tiny": 5e-324, "best": None},
    )
    checkpoints.save(tmp_path / "kept", 5, saved)
    loaded = checkpoints.load(tmp_path / "kept", 5)
    assert loaded.model.keys() == saved.model.keys()
    assert all(torch.equal(value, saved.model[name]) for name, value in loaded.model.items())
    assert loaded.state == saved.state


def test_tensors_that_share_memory_or_are_channels_last_are_saved(tmp_path):
    weight = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    checkpoints.save(tmp_path / "kept", 5, Checkpoint({"a": weight, "tied": weight}, {}, {}))
    loaded = checkpoints.load(tmp_path / "kept", 5).model
    assert torch.equal(loaded["a"], weight)
    assert torch.equal(loaded["tied"], weight)


def test_a_checkpoint_of_the_same_step_stays_until_the_new_one_is_written(tmp_path, monkeypatch):
    checkpoints.save(tmp_path / "kept", 1, checkpoint(7.0))

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_durably", full)
        with pytest.raises(InputError, match="No space left"):
            checkpoints.save(tmp_path / "kept", 1, checkpoint(8.0))
    assert checkpoints.load(tmp_path / "kept", 1).model["w"][0] == 7
    checkpoints.save(tmp_path / "kept", 1, checkpoint(8.0))
    assert checkpoints.load(tmp_path / "kept", 1).model["w"][0] == 8
    assert os.listdir(tmp_path / "kept") == ["step-00000001"]


def test_the_last_and_those_to_keep_are_kept(tmp_path):
    for step in (1, 2, 3, 12):
        checkpoints.save(tmp_path / "kept", step, checkpoint(), keep={2})
    assert checkpoints.steps(tmp_path / "kept") == [2, 12]
    assert sorted(os.listdir(tmp_path / "kept")) == ["step-00000002", "step-00000012"]


def test_the_last_and_the_best_epoch_of_a_run_are_found_and_what_is_not_there_is_named(tmp_path):
    record, place = Record(tmp_path, {}, ()), tmp_path / "checkpoints"

    def save(step, best):
        checkpoints.save(place, step, Checkpoint({"w": torch.tensor(step)}, {}, {"position": {"best": best}}), keep={2})

    with pytest.raises(InputError, match="there is no checkpoint yet"):
        checkpoints.step_of(record, "best")
    save(1, None)
    with pytest.raises(InputError, match="no epoch was chosen by validation; take the last"):
        checkpoints.step_of(record, "best")
    with pytest.raises(InputError, match="the 'first' epoch: choose last or best"):
        checkpoints.step_of(record, "first")
    save(2, {"step": 2})
    save(3, {"step": 2})
    assert [checkpoints.step_of(record, which) for which in ("last", "best")] == [3, 2]
    assert [checkpoints.load_epoch(record, which).model["w"].item() for which in ("last", "best")] == [3, 2]


def test_what_was_left_half_written_is_no_checkpoint_and_is_cleared_away(tmp_path):
    checkpoints.save(tmp_path / "kept", 1, checkpoint())
    (tmp_path / "kept" / ".writing-step-00000002").mkdir()
    (tmp_path / "kept" / ".writing-step-00000002" / "model.safetensors").write_bytes(b"half")
    assert checkpoints.steps(tmp_path / "kept") == [1]
    checkpoints.save(tmp_path / "kept", 2, checkpoint())
    assert os.listdir(tmp_path / "kept") == ["step-00000002"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("change", ["truncated", "flipped", "missing", "empty"])
def test_a_file_that_was_changed_is_named_and_refused(tmp_path, name, change):
    path = checkpoints.save(tmp_path / "kept", 1, checkpoint()) / name
    content = path.read_bytes()
    if change == "missing":
        path.unlink()
    elif change == "flipped":
        place = content.index(b'"epoch": 2') + 9 if name == "state.json" else len(content) - 1
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    else:
        path.write_bytes(content[: len(content) // 2] if change == "truncated" else b"")
    with pytest.raises(InputError, match=name) as refused:
        checkpoints.load(tmp_path / "kept", 1)
    assert "\n" not in str(refused.value)


class Exploding:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_malicious_pickle_is_never_loaded_even_with_the_right_checksum(tmp_path):
    path = checkpoints.save(tmp_path / "kept", 1, checkpoint())
    pickle.loads(pickle.dumps(Exploding(tmp_path / "exploded")))
    (tmp_path / "exploded").rmdir()  # it works
    evil = pickle.dumps(Exploding(tmp_path / "exploded"))
    for name in ("model.pt", "optimizer.pt", "state.pkl", "data.pkl"):
        (path / name).write_bytes(evil)
    checkpoints.load(tmp_path / "kept", 1)
    torch.save(Exploding(tmp_path / "exploded"), path / "model.safetensors")
    state = json.loads((path / "state.json").read_text())
    state["sha256"]["model.safetensors"] = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"model\.safetensors: is not as it was written; move step-00000001 away"):
        checkpoints.load(tmp_path / "kept", 1)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        lambda weights: torch.optim.Adam(weights, lr=0.1, betas=(0.8, 0.99), amsgrad=True),
        lambda weights: torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.5}]),
    ],
    ids=["momentum", "plain", "adam", "groups"],
)
def test_an_optimizer_goes_on_as_if_it_had_not_been_packed(tmp_path, make):
    def steps(weights, optimizer, numbers):
        for number in numbers:
            optimizer.zero_grad()
            sum((weight - number).square().sum() for weight in weights).backward()
            optimizer.step()

    weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1, 2, 2, 2))]
    optimizer = make(weights)
    steps(weights, optimizer, (2, 3))
    tensors, rest = pack_optimizer(optimizer)
    checkpoints.save(tmp_path / "kept", 1, Checkpoint({}, tensors, {"optimizer": rest}))
    kept = checkpoints.load(tmp_path / "kept", 1)
    others = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    resumed = make(others)
    unpack_optimizer(resumed, kept.optimizer, kept.state["optimizer"])
    steps(weights, optimizer, (5, 1))
    steps(others, resumed, (5, 1))
    assert all(torch.equal(weight, other) for weight, other in zip(weights, others, strict=True))
    for group, other in zip(optimizer.param_groups, resumed.param_groups, strict=True):
        assert {k: v for k, v in group.items() if k != "params"} == {k: v for k, v in other.items() if k != "params"}


def test_the_serialised_form_is_safetensors_own(tmp_path):
    path = checkpoints.save(tmp_path / "kept", 1, checkpoint())
    assert (path / "model.safetensors").read_bytes() == serialised({"w": torch.ones(3)})
