"""Devices and processes of a training, by Lightning Fabric, and sums and broadcasts over its processes."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from prproduct.lab.checks import check_known, check_least
from prproduct.lab.errors import InputError
from prproduct.lab.options import option
from prproduct.lab.progress import counted

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Result = TypeVar("Result")
ACCELERATORS = ("auto", "cpu", "cuda", "mps")
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@dataclass(frozen=True)
class Hardware:
    """Options for devices and processes. A run may be resumed on others; docs/runs.md says how its numbers then differ.

    >>> Hardware(devices=0)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: devices is 0, it must be at least 1
    """

    accelerator: str = option("auto", ", ".join(ACCELERATORS))
    devices: int = option(1, "devices of this machine, a process for each; several machines: torchrun")
    threads: int | None = option(None, "CPU threads of each process; as many as torch chooses if not given")

    def __post_init__(self) -> None:
        check_known("accelerator", self.accelerator, ACCELERATORS)
        check_least("devices", self.devices, 1)
        check_threads(self.threads)

    def start(self, precision: str = "32") -> Fabric:
        """Return a launched Fabric; it starts the other processes, unless `torchrun` has."""
        # Imported here, as it imports torch._dynamo: 3 s that `--help` and a mistyped option would take as well.
        from lightning_fabric import Fabric
        from lightning_fabric.utilities.exceptions import MisconfigurationException

        if precision == "16" and (self.accelerator == "cpu" or not torch.cuda.is_available()):
            raise InputError("precision 16 needs a CUDA device; on a CPU choose bf16 or 32")
        devices, machines, launched = self.devices, 1, torch.distributed.is_torchelastic_launched()
        if launched:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            machines = int(os.environ["WORLD_SIZE"]) // devices
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        try:
            fabric = Fabric(
                accelerator=self.accelerator,
                devices=devices,
                num_nodes=machines,
                precision=PRECISIONS[precision],  # type: ignore[arg-type]
            )
        except (MisconfigurationException, RuntimeError, ValueError) as error:
            wanted = f"accelerator {self.accelerator} with {counted(devices, 'device')}"
            said = str(error).splitlines()[0].split(". ")[0]
            raise InputError(
                f"{wanted} is not available here ({said}); choose another --accelerator or fewer --devices"
            ) from None
        if not launched and fabric.device.type == "cpu" and devices > cores():
            raise InputError(f"devices is {devices}: a CPU takes one process for each of its {cores()} cores at most")
        fabric.launch()
        if self.threads is not None:  # Fabric divides the cores among the processes that it launches
            torch.set_num_threads(self.threads)
        return fabric


def check_threads(threads: int | None) -> None:
    """Raise InputError for a number of threads that is not from 1 to 1024; None, not given, passes."""
    if threads is not None and not 1 <= threads <= 1024:
        raise InputError(f"threads is {threads}, it must be from 1 to 1024")


def cores() -> int:
    """Return the number of CPU cores that this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads_set(threads: int | None) -> Iterator[None]:
    """Set the number of CPU threads inside the context; None leaves it.

    >>> with threads_set(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def reproducible(fabric: Fabric) -> Iterator[None]:
    """Use torch's deterministic algorithms, and restore the caller's random state and settings afterwards.

    Operations without a deterministic algorithm on a GPU warn. The mode's filling of new memory with NaN is off: it
    takes time.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if fabric.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        # DDP warns of every 1×1 convolution, whose strides are ambiguous, without need.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def in_first(fabric: Fabric, function: Callable[[], Result]) -> Result:
    """Call `function` in the first process and return its result in all; an InputError is raised in the first only.

    >>> in_first(Hardware(accelerator="cpu").start(), lambda: 7)
    7
    """
    outcome: Result | InputError | None = None
    if fabric.global_rank == 0:
        try:
            outcome = function()
        except InputError as error:
            outcome = error
    shared: Any = fabric.broadcast(outcome)
    if isinstance(shared, InputError):
        raise shared if fabric.global_rank == 0 else SystemExit(2)
    return shared


def in_all(fabric: Fabric, function: Callable[[], Result]) -> Result:
    """Call `function` in every process and return its result; an InputError ends all processes and is raised in one.

    >>> in_all(Hardware(accelerator="cpu").start(), lambda: 7)
    7
    """
    outcome: Result | InputError
    try:
        outcome = function()
    except InputError as error:
        outcome = error
    errors = gathered(fabric, [str(outcome) if isinstance(outcome, InputError) else ""])
    if not isinstance(outcome, InputError):
        if any(errors):
            raise SystemExit(2)
        return outcome
    # Each error is raised by the first process that has it, since most are the same in all.
    raise SystemExit(2) if str(outcome) in errors[: fabric.global_rank] else outcome


def summed(fabric: Fabric, numbers: Sequence[float]) -> list[float]:
    """Return the sums of numbers over all processes, in double precision.

    >>> summed(Hardware(accelerator="cpu").start(), [0.5, True])
    [0.5, 1.0]
    """
    own = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
    if fabric.world_size > 1:
        own = cast(Tensor, fabric.all_reduce(own.to(fabric.device), reduce_op="sum"))
    return own.tolist()


def gathered(fabric: Fabric, own: Sequence[Result]) -> list[Result]:
    """Return the concatenated lists of all processes, in every process.

    >>> gathered(Hardware(accelerator="cpu").start(), ["a", "b"])
    ['a', 'b']
    """
    if fabric.world_size == 1:
        return list(own)
    everybody: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everybody, list(own))
    return [item for each in everybody for item in each]
