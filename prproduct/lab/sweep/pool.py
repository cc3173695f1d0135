"""Sweep workers as processes of this machine, each with a number of CPU threads and at most one GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import torch

from prproduct.lab.progress import counted
from prproduct.lab.sweep.jobs import DIED, Ending, Job, attempt


class Pool:
    """Up to `places` worker processes, each started when there is a job for it and kept for the next job.

    They are spawned, not forked: a forked process inherits locks of other threads and CUDA's state. A worker that died
    is replaced.
    """

    def __init__(self, places: int, threads: int, gpus: Sequence[str] = ()) -> None:
        self.places, self.threads = places, threads
        self.gpus = [gpus[place % len(gpus)] if gpus else "" for place in range(places)]  # "" for none
        self._free = list(self.gpus)  # GPUs of the workers that are not started yet
        self._workers: list[_Worker] = []

    def __str__(self) -> str:
        on = ", each on a GPU" if any(self.gpus) else ""
        return f"up to {counted(self.places, 'run')} at once{on}, {counted(self.threads, 'CPU thread')} each"

    def room(self) -> bool:
        return bool(self._free) or any(worker.job is None for worker in self._workers)

    def start(self, job: Job) -> None:
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None:
            idle = _Worker(self.threads, self._free.pop(0))
            self._workers.append(idle)
        idle.take(job)

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        busy = {worker.connection: worker for worker in self._workers if worker.job}
        found = []
        for ready in connection.wait(list(busy), seconds):
            worker = busy[ready]  # type: ignore[index]
            job, ending = worker.result()
            found.append((job, ending))
            if ending.how == DIED:
                self._workers.remove(worker)
                self._free.append(worker.gpu)
        return found

    def ask_to_stop(self) -> None:
        for worker in self._workers:
            if worker.job:
                worker.process.terminate()

    def close(self) -> None:
        for worker in self._workers:
            if worker.job:
                worker.process.kill()
            worker.connection.close()  # an idle worker ends when its connection closes
        for worker in self._workers:
            worker.process.join()
        self._workers = []


class _Worker:
    """A worker process, and its current job."""

    def __init__(self, threads: int, gpu: str) -> None:
        self.gpu = gpu
        self.job: Job | None = None
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, threads, gpu), name="sweep-worker")
        with _children_without_ctrl_c():
            self.process.start()
        theirs.close()

    def take(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the process is dead; `result` reports it
            self.connection.send(job)

    def result(self) -> tuple[Job, Ending]:
        job, self.job = self.job, None
        assert job
        try:
            return job, self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return job, Ending(DIED, f"its worker died ({_reason(self.process.exitcode)})")


def _work(jobs: Connection[Ending, Job], threads: int, gpu: str) -> None:
    """Run jobs from the connection until it is closed."""
    os.setsid()  # the driver forwards signals; a second one from its process group would end the worker at once
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver closed it, or is dead
        while True:
            jobs.send(attempt(jobs.recv()))


def _end_with_the_driver() -> None:
    """Wait for the driver to end, then send SIGTERM to this process: a driver that was killed stops nobody."""
    driver: Any = multiprocessing.parent_process()
    driver.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _children_without_ctrl_c() -> Iterator[None]:
    """Block SIGINT while processes are started inside: they inherit the block, and this process gets it afterwards."""
    resource_tracker.ensure_running()  # else it is started by the first process, and unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reason(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return f"{name}, as when memory is full" if -status == signal.SIGKILL else name
    return f"exit status {status}"
