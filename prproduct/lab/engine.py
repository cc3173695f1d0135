"""The training loop.

Everything a step depends on is a function of its number: the batch, the augmentation, the learning rate, and torch's
random numbers, which are seeded at each step. So a checkpoint holds weights, the optimizer's state and a position, and
a resumed run computes the same bits as one that was not stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prproduct.lab import checkpoints
from prproduct.lab.checkpoints import Checkpoint
from prproduct.lab.checks import check_least
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import in_first, summed
from prproduct.lab.nonfinite import DivergedError, all_finite, where_it_began
from prproduct.lab.progress import NoTrainingProgress, counted
from prproduct.lab.recording import Recorder
from prproduct.lab.runs import CHECKPOINTS, Run
from prproduct.lab.seeds import seed_of
from prproduct.lab.stopping import Stopped, StopSignals

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Batch(Protocol):
    """One process's part of the samples of one step."""

    @property
    def global_size(self) -> int:
        """The number of samples of the step over all processes, by which summed losses are divided."""
        ...


class Task(Protocol):
    """What the engine trains: a model, its optimizer, batches and losses, and its evaluation."""

    title: str  # the first line that a terminal shows
    model: nn.Module
    optimizer: Optimizer
    epochs: int
    steps: int  # in an epoch
    seed: int
    select_by: str | None  # the number of `evaluate` that selects an epoch; None: no epoch is selected
    select_largest: bool  # select the largest value, or the smallest

    def batches(self, epoch: int, start_step: int) -> Iterable[Any]:
        """Batches of `epoch` for this process, starting at `start_step`."""
        ...

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Return sums over this process's samples: "loss", which is differentiated, and others to record."""
        ...

    def learning_rate(self, epoch: int, step: int) -> float:
        """Return the learning rate of a step of an epoch."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the evaluation of the model over all processes."""
        ...

    def seconds(self) -> dict[str, float]:
        """Return the seconds of parts of its work since the last call, for the record of an epoch."""
        ...


@dataclass(frozen=True)
class Settings:
    """Settings of the training loop.

    >>> Settings(checkpoint_minutes=math.nan)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: checkpoint_minutes is nan, it must be at least 0
    """

    compile: bool = False
    clip_norm: float = 0.0  # a larger gradient norm is scaled down to this; 0: no clipping
    clip_value: float = 0.0  # then every element is clamped to ± this; 0: no clamping
    max_steps: int | None = None  # end after so many steps, also within an epoch
    angles: int = 0  # record the angles every so many steps; 0: never
    log_every: int = 50  # steps
    checkpoint_minutes: float = 10.0  # and at the end of each epoch
    tensorboard: bool = True

    def __post_init__(self) -> None:
        check_least("checkpoint_minutes", self.checkpoint_minutes, 0)  # a configuration checks the others


@dataclass
class Position:
    """The progress of a training, saved in its checkpoints."""

    epoch: int = 0
    step: int = 0  # in the epoch; equal to `Task.steps`: trained but not evaluated
    samples: int = 0  # of the epoch so far, and sums over them
    sums: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] | None = None  # the selected epoch so far: its epoch, its step, and what `evaluate` returned
    last: dict[str, Any] | None = None  # the same of the last epoch that was evaluated


class TrainingLoop:
    """Trains a task from its run's last checkpoint, if it has one.

    Every process of a training has a loop. `run` is None in all but the first, which writes records and checkpoints.
    """

    def __init__(
        self,
        task: Task,
        fabric: Fabric,
        run: Run | None,
        settings: Settings,
        progress: NoTrainingProgress,
        stop: StopSignals,
    ) -> None:
        self.task, self.fabric, self.run, self.settings = task, fabric, run, settings
        self.progress, self.stop = progress, stop
        self.at = Position()
        steps = task.epochs * task.steps
        self.total = steps if settings.max_steps is None else min(steps, settings.max_steps)
        checkpoint = in_first(fabric, self._last_checkpoint)
        if checkpoint is not None:
            with self._naming_the_checkpoint():
                task.model.load_state_dict(checkpoint.model)
        # DDP around the compiled model, not the reverse: a probe needs the module that is called.
        self.without_ddp = cast(nn.Module, torch.compile(task.model)) if settings.compile else task.model
        self.model, self.optimizer = fabric.setup(self.without_ddp, task.optimizer, _reapply_compile=False)
        if checkpoint is not None:
            with self._naming_the_checkpoint():
                self._continue_from(checkpoint)
        in_first(fabric, lambda: self._cut_records(checkpoint))  # the first change of the records, after all checks
        self._say_header()
        if checkpoint is not None:
            self.progress.say(f"resuming after step {self.global_step}")
        self.saved_at = time.monotonic()
        self.recorder = Recorder(run, self.global_step, tensorboard=settings.tensorboard)

    @property
    def global_step(self) -> int:
        """The number of steps done since the start of the run."""
        return min(self.at.epoch * self.task.steps + self.at.step, self.total)

    def train(self) -> None:
        """Train the remaining epochs, record the end, and close progress bars and records."""
        try:
            self.progress.start("compiling…" if self.settings.compile else "training", self.global_step, self.total)
            while self.at.epoch * self.task.steps < self.total:
                self.epoch()
            self.recorder.add("end", {"step": self.global_step, "last": self.at.last, "selected": self.at.best})
        finally:
            self.progress.stop()
            self.recorder.close()

    def epoch(self) -> None:
        """Do the remaining steps of an epoch, measure their time, and evaluate."""
        task, at = self.task, self.at
        began, cpu_began, samples_before = time.perf_counter(), time.thread_time(), at.samples
        self.model.train()
        left = min(task.steps, self.total - at.epoch * task.steps) - at.step
        for batch in islice(task.batches(at.epoch, at.step), left):
            self.step(batch)
        seconds = time.perf_counter() - began
        clock = {
            "train_seconds": seconds,
            "samples_per_second": (at.samples - samples_before) / max(seconds, 1e-9),
            "cpu_seconds": time.thread_time() - cpu_began,  # of the main thread; less if others took its core
        }
        self.end_epoch(clock)

    def step(self, batch: Batch) -> None:
        """Do one step: forward, backward, update, record, and a checkpoint when it is due."""
        task, at, number = self.task, self.at, self.global_step
        torch.manual_seed(seed_of(task.seed, number, self.fabric.global_rank))
        rate = task.learning_rate(at.epoch, at.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self._probe(number):
            sums = task.sums(self.model, batch)
            # DDP averages gradients over processes; here they are to be summed.
            self.fabric.backward(sums["loss"] * (self.fabric.world_size / batch.global_size))
            # The one synchronisation with a GPU, after backward is queued; no weight has changed yet.
            totals, stop, due = self._over_all_processes(sums)
        if not math.isfinite(totals["loss"]):  # outside of the probe, which would count the repeated forward
            self._end_diverged("loss", lambda: task.sums(task.model, batch))
        norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        at.step, at.samples = at.step + 1, at.samples + batch.global_size
        at.sums = {name: at.sums.get(name, 0.0) + total for name, total in totals.items()}
        means = {name: total / batch.global_size for name, total in totals.items()}
        self.progress.step(batch.global_size, means["loss"])
        if self.global_step % self.settings.log_every == 0:
            here = {"step": self.global_step, "epoch": at.epoch}
            self.recorder.add("step", {**here, **means, "learning_rate": rate, **norm})
        if stop or due:
            self.save()
        if stop:
            line = f"stopped after step {self.global_step}"
            if self.run:
                line += f"; resume with --resume --run-dir {self.run.folder}"
            self.progress.say(line)
            raise Stopped(line)

    def end_epoch(self, clock: dict[str, float]) -> None:
        """Evaluate, record, select, and write a checkpoint; `clock` has the times of the epoch's training."""
        task, at = self.task, self.at
        self._end_unless_finite()
        self._share_buffers()
        self.model.eval()
        began = time.perf_counter()
        with torch.no_grad(), self.fabric.autocast():
            evaluated = {name: _or_null(value) for name, value in task.evaluate(self.without_ddp).items()}
        here = {"epoch": at.epoch, "step": self.global_step}
        means = {f"train_{name}": total / at.samples for name, total in at.sums.items()}
        rate = task.learning_rate(at.epoch, at.step - 1)
        clock = {**clock, "evaluation_seconds": time.perf_counter() - began, **task.seconds()}
        at.last = {**here, **means, **evaluated}
        if task.select_by:
            value, best = at.last[task.select_by], at.best[task.select_by] if at.best else None
            at.best = at.last if _better(value, best, task.select_largest) else at.best
        record = {**at.last, "learning_rate": rate, "time": clock}
        self.recorder.add("epoch", record)
        self.progress.epoch(record)
        at.epoch, at.step, at.samples, at.sums = at.epoch + 1, 0, 0, {}
        self.save()

    def save(self) -> None:
        """Write a checkpoint; that of the selected epoch is kept."""
        self._end_unless_finite()
        in_first(self.fabric, self._write)
        self.saved_at = time.monotonic()

    def _write(self) -> None:
        assert self.run
        tensors, optimizer = checkpoints.pack_optimizer(self.task.optimizer)
        state = {
            "position": asdict(self.at),
            "optimizer": optimizer,
            "scaler": self.fabric.strategy.precision.state_dict(),
            "records": self.run.records(),
            "run": self.run.identity,
        }
        selected = {self.at.best["step"]} if self.at.best else set()
        checkpoint = Checkpoint(self.task.model.state_dict(), tensors, state)
        checkpoints.save(self.run.folder / CHECKPOINTS, self.global_step, checkpoint, keep=selected)
        self.run.checkpointed()

    def _last_checkpoint(self) -> Checkpoint | None:
        """Return the run's last checkpoint, or None; InputError if it or the records were changed."""
        assert self.run
        folder = self.run.folder / CHECKPOINTS
        checkpoints.restore(folder)
        steps = checkpoints.steps(folder)
        if not steps:
            self.run.refuse_lost_checkpoints()
            return None
        checkpoint = checkpoints.load(folder, steps[-1], self.run.identity)
        with self._naming_the_checkpoint():
            records = checkpoint.state["records"]
        self.run.check(records)
        return checkpoint

    def _cut_records(self, checkpoint: Checkpoint | None) -> None:
        assert self.run
        self.run.cut(checkpoint.state["records"] if checkpoint else {})

    @contextmanager
    def _naming_the_checkpoint(self) -> Iterator[None]:
        """Turn errors of loading into an InputError that names the checkpoint."""
        try:
            yield
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            if not self.run:
                raise SystemExit(2) from None  # the first process prints the error
            folder = self.run.folder / CHECKPOINTS
            path = folder / f"step-{checkpoints.steps(folder)[-1]:08d}"
            message = " ".join(str(error).split())[:200]
            raise InputError(f"{path}: does not fit this run ({message}); move it away") from None

    def _say_header(self) -> None:
        """Show what is trained, on which data, and where."""
        if not self.run:
            return
        task = self.task
        weights = sum(parameter.numel() for parameter in task.model.parameters())
        epochs = f"{counted(task.epochs, 'epoch')} of {counted(task.steps, 'step')}"
        steps = counted(self.total, "step") if self.settings.max_steps else epochs
        self.progress.say(f"{task.title}: {weights:,} parameters, {steps}")
        processes = f"{self.fabric.world_size} processes on " if self.fabric.world_size > 1 else ""
        where = f"{processes}{self.fabric.device}, {counted(torch.get_num_threads(), 'CPU thread')}"
        self.progress.say(f"{where}; run folder {self.run.folder}")

    def _continue_from(self, checkpoint: Checkpoint) -> None:
        self.at = Position(**checkpoint.state["position"])
        checkpoints.unpack_optimizer(self.task.optimizer, checkpoint.optimizer, checkpoint.state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(checkpoint.state["scaler"])

    def _probe(self, number: int) -> AbstractContextManager[None]:
        wanted = self.settings.angles and number % self.settings.angles == 0
        return self.recorder.angles(self.without_ddp, number) if wanted else nullcontext()

    def _over_all_processes(self, sums: dict[str, Tensor]) -> tuple[dict[str, float], bool, bool]:
        """Return sums over all processes, whether one was asked to stop, and whether a checkpoint is due.

        So all processes stop after the same step, and checkpoint at the same step.
        """
        due = self.run is not None and time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes
        own = torch.stack([value.detach().float() for value in sums.values()]).tolist()
        *totals, stop, save = summed(self.fabric, [*own, self.stop.asked, due])
        return dict(zip(sums, totals, strict=True)), stop > 0, save > 0

    def _clip(self) -> dict[str, float | None]:
        """Clip the norm, then the values of the gradients; return the norm before clipping if it was computed."""
        record: dict[str, float | None] = {}
        if self.settings.clip_norm:
            norm = self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.settings.clip_norm, error_if_nonfinite=False
            )
            value = float(norm) if norm is not None else math.nan
            skipped = self.fabric.strategy.precision.precision == "16-mixed"  # the GradScaler skips such a step
            if not math.isfinite(value) and not skipped:
                self._end_diverged("gradient", lambda: None)
            record["gradient_norm"] = _or_null(value)
        if self.settings.clip_value:
            self.fabric.clip_gradients(self.model, self.optimizer, clip_val=self.settings.clip_value)
        return record

    def _end_unless_finite(self) -> None:
        """Raise DivergedError for weights that are not finite, before they are saved or evaluated."""
        if summed(self.fabric, [not all_finite(self.task.model)])[0]:  # buffers may differ between processes
            self._end_diverged("update", lambda: None)

    def _end_diverged(self, what: str, forward: Callable[[], object]) -> None:
        """Record where NaN or infinity appeared first, and raise DivergedError.

        `what` is the loss, the gradient or the update; `forward` computes the loss again, if that is what diverged.
        """
        with self.fabric.autocast():
            own = where_it_began(self.task.model, forward)
        found = [self.fabric.broadcast(own, rank) for rank in range(self.fabric.world_size)]
        where = next((place for place in found if not place.startswith("in the loss")), found[0])
        if what == "gradient":
            where = "in the backward: the loss and all weights are finite"
        step = self.global_step + (what != "update")  # an update is part of the step before
        steps = checkpoints.steps(self.run.folder / CHECKPOINTS) if self.run else []
        self.recorder.add("diverged", {"step": step, "epoch": self.at.epoch, "what": what, "where": where})
        if not self.run:
            raise SystemExit(2)  # the first process prints the error
        kept = f"the checkpoint of step {steps[-1]} is kept" if steps else "there was no checkpoint yet"
        raise DivergedError(
            f"the {what} of step {step} is NaN or infinite; it began {where}; {kept}; try a smaller learning rate in "
            "another folder"
        )

    def _share_buffers(self) -> None:
        """Broadcast the first process's buffers: BatchNorm's statistics differ between processes."""
        if self.fabric.world_size > 1:
            for buffer in self.task.model.buffers():
                torch.distributed.broadcast(buffer, 0)


def _or_null(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON cannot express."""
    return value if math.isfinite(value) else None


def _better(value: float | None, than: float | None, largest: bool) -> bool:
    return value is not None and (than is None or (value > than if largest else value < than))
