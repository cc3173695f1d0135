"""A training's folder, and errors of several processes: which raises one, and which mean that another is gone."""

from types import SimpleNamespace

import pytest

from prproduct.lab import hardware, session
from prproduct.lab.engine import Settings
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import Hardware
from prproduct.lab.session import _one_line_for_a_dead_process, train_task

FIRST = SimpleNamespace(world_size=2, is_global_zero=True)


@pytest.mark.parametrize(
    "message",
    [
        "[pair.cc:553] Connection closed by peer [127.0.0.1]:20180. This is typically caused by …",
        "[pair.cc:537] Read error [127.0.0.1]:23769: Connection reset by peer.",
        "NCCL error in: X.cpp:268, remote process exited or there was a network error\nncclRemoteError: …",
        "NCCL error in: X.cpp:1187, internal error\nLast error:\nNET/IB : Connection closed by remote peer node1<42>",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_a_lost_connection_is_one_line_with_its_reason(message):
    with pytest.raises(InputError) as refused, _one_line_for_a_dead_process(FIRST, "runs/a"):
        raise RuntimeError(message)
    reason = next(line for line in message.splitlines() if any(word in line for word in ("onnection", "exited")))
    assert str(refused.value) == (
        f"another process of this training has died ({reason}); resume with --resume --run-dir runs/a"
    )


@pytest.mark.parametrize(
    "message",
    [
        "NCCL error in: X.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for details)\nncclInvalidUsage: "
        "This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1",
        "[gloo/algorithm.cc:80] No support for type Half",
    ],
)
def test_another_error_of_nccl_or_gloo_comes_through_as_itself(message):
    error = RuntimeError(message)
    with pytest.raises(RuntimeError) as raised, _one_line_for_a_dead_process(FIRST, "runs/a"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(("first", "raised"), [(True, InputError), (False, SystemExit)])
def test_processes_with_different_options_end_in_one_line(monkeypatch, first, raised):
    monkeypatch.setattr(session, "gathered", lambda fabric, own: [*own, '{"product": "pr"}'])
    fabric = SimpleNamespace(is_global_zero=first)
    session._check_same_in_all(fabric, {"product": "pr"})
    with pytest.raises(raised, match=r"the processes of this training have different options|2"):
        session._check_same_in_all(fabric, {"product": "p"})


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        (["a", "a", "a"], [InputError, SystemExit, SystemExit]),
        (["", "a", "a"], [SystemExit, InputError, SystemExit]),
        (["a", "b", ""], [InputError, InputError, SystemExit]),
    ],
)
def test_an_error_is_raised_by_the_first_process_that_has_it_and_ends_the_others(monkeypatch, errors, raised):
    def make():
        if own:
            raise InputError(own)

    for rank, (own, expected) in enumerate(zip(errors, raised, strict=True)):
        monkeypatch.setattr(hardware, "gathered", lambda fabric, found: errors)
        with pytest.raises(expected) as ended:
            hardware.in_all(SimpleNamespace(global_rank=rank), make)
        assert str(ended.value) == (own if expected is InputError else "2")


def test_a_restart_with_other_options_replaces_the_files_of_the_run_before(tmp_path, monkeypatch):
    """Else the captioner's run would keep a vocabulary that it was not trained with."""
    monkeypatch.setattr(session, "TrainingLoop", lambda *given: SimpleNamespace(train=lambda: None))
    for words, restart in ((b"[]", False), (b'["dog"]', True)):
        train_task(
            lambda fabric: None,
            tmp_path / "a",
            {"config": {"words": words.decode()}},
            Settings(),
            resume=False,
            restart=restart,
            files={"vocabulary.json": words},
            hardware=Hardware(accelerator="cpu"),
            summary=str,
        )
        assert (tmp_path / "a" / "vocabulary.json").read_bytes() == words
