"""What a training writes while it runs: lines of metrics.jsonl and angles.jsonl, and TensorBoard events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from prproduct.lab.files import writing
from prproduct.lab.record_files import ANGLES
from prproduct.lab.runs import TENSORBOARD, Run
from prproduct.probe import AngleProbe


class Recorder:
    """Writes the records of a run from a step on; with run=None, in all processes but the first, it writes nothing."""

    def __init__(self, run: Run | None, step: int, *, tensorboard: bool) -> None:
        self.run, self._board, self._hook = run, None, threading.excepthook
        if run and tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            with writing(run.folder / TENSORBOARD):  # later events of an earlier attempt are hidden
                self._board = SummaryWriter(run.folder / TENSORBOARD, purge_step=step + 1)
            threading.excepthook = self._in_a_thread

    def add(self, event: str, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl, and its floats to TensorBoard."""
        if not self.run:
            return
        self.run.append({"event": event, **record})
        if self._board:
            with writing(self.run.folder / TENSORBOARD):
                for name, value in record.items():
                    if isinstance(value, float):
                        self._board.add_scalar(f"{event}/{name}", value, record["step"])

    @contextmanager
    def angles(self, model: nn.Module, step: int) -> Iterator[None]:
        """Record the angles and gradient parts of the forward and backward inside, for this process's samples."""
        if not self.run:
            yield
            return
        path = self.run.folder / ANGLES
        with writing(path), AngleProbe(model, step=step, jsonl=path, writer=self._board):
            yield

    def close(self) -> None:
        """Flush and close TensorBoard's file."""
        try:
            if self.run and self._board:
                with writing(self.run.folder / TENSORBOARD):
                    self._board.close()
        finally:
            threading.excepthook = self._hook

    def _in_a_thread(self, error: threading.ExceptHookArgs) -> None:
        """Suppress the traceback of TensorBoard's thread on a full disk: the writer's next call raises the error."""
        if not (isinstance(error.exc_value, OSError) and type(error.thread).__module__.startswith("tensorboard")):
            self._hook(error)
