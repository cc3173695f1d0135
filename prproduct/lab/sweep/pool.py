"""Workers that are processes of this machine; each has some of its cores, and a GPU if there are any."""

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

from prproduct.lab.sweep.jobs import DIED, Ending, Job, attempt


class Pool:
    """Up to `places` processes, started when there is a job for them and kept for the next one.

    They are spawned, not forked: a fork takes threads' locks and CUDA's state along. A worker that died is replaced.
    """

    def __init__(self, places: int, threads: int, gpus: Sequence[str] = ()) -> None:
        self.places, self.threads = places, threads
        self.gpus = [gpus[place % len(gpus)] if gpus else "" for place in range(places)]  # "": none
        self._free = list(self.gpus)  # those of processes that may still be started
        self._workers: list[_Worker] = []

    def __str__(self) -> str:
        on = ", each on a GPU" if any(self.gpus) else ""
        return f"up to {self.places} runs at once{on}, {self.threads} CPU threads each"

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
            worker.connection.close()  # which an idle one takes for the end
        for worker in self._workers:
            worker.process.join()
        self._workers = []


class _Worker:
    """A process, and the job that it works on."""

    def __init__(self, threads: int, gpu: str) -> None:
        self.gpu, self.job = gpu, None  # type: str, Job | None
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, threads, gpu), name="sweep-worker")
        with _children_without_ctrl_c():
            self.process.start()
        theirs.close()

    def take(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of a dead one; `result` says so
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
    """One job behind the other, until the driver hangs up."""
    os.setsid()  # a signal to the driver's group must not come on top of the driver's own: the second does not wait
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # it hung up, or is dead
        while True:
            jobs.send(attempt(jobs.recv()))


def _end_with_the_driver() -> None:
    """A driver that was killed asks nobody to stop; then its workers ask themselves."""
    driver: Any = multiprocessing.parent_process()
    driver.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _children_without_ctrl_c() -> Iterator[None]:
    """Processes that are started inside do not get Ctrl-C, from their first moment on; ours waits for the end of it."""
    resource_tracker.ensure_running()  # which would lift the block when the first process starts
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
