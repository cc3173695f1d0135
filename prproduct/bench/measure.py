"""Measures one case: time, memory, and which implementation of the backward ran."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

import prproduct as pr
from prproduct.bench.cases import Case
from prproduct.bench.literal import make_literal, why_not_literal
from prproduct.bench.profiling import kept_bytes, path_of, peak_bytes
from prproduct.bench.results import NOT_ASKED_FOR, Row, Settings
from prproduct.bench.timing import AGAIN, NATIVE, OURS, REFERENCE, Budget, CudaTimer, Step, time_interleaved
from prproduct.ops.autograd import Memory


@dataclass(frozen=True)
class Variants:
    """A native module, a copy with the same weights under the product, and the batch of both."""

    native: nn.Module
    ours: nn.Module
    batch: Tensor

    @classmethod
    def of(cls, case: Case, product: str, dtype: torch.dtype, memory: Memory = "save") -> Variants:
        """Build the variants of a case; weights and batch are the same in every run."""
        torch.manual_seed(0)
        native = case.build().to(dtype)
        return cls(native, pr.convert(copy.deepcopy(native), product, memory=memory), case.batch(dtype))


@dataclass(frozen=True)
class UnderAutocast:
    """A step under autocast to bfloat16."""

    step: Step
    device_type: str = "cpu"

    def prepare(self) -> None:
        self.step.prepare()

    def __call__(self) -> None:
        with autocast(True, self.device_type):
            self.step()


def autocast(enabled: bool, device_type: str = "cpu") -> AbstractContextManager[object]:
    """Return a context of autocast to bfloat16 if `enabled`."""
    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=enabled)


def measure(case: Case, settings: Settings, budget: Budget, with_reference: bool = True) -> Row:
    """Measure a case and return its row.

    With `with_reference` the literal formula is measured too, unless it would take too much memory.
    """
    dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
    with device:
        variants = Variants.of(case, settings.product, dtype, settings.memory)
    modules = {NATIVE: variants.native, OURS: variants.ours, AGAIN: copy.deepcopy(variants.native)}
    saved_native = saved_ours = None
    if settings.compile:
        modules = {name: cast(nn.Module, torch.compile(module, dynamic=False)) for name, module in modules.items()}
    else:
        with device, autocast(settings.autocast, device.type):
            saved_native, saved_ours = (
                kept_bytes(case.forward(module), variants.batch) for module in (variants.native, variants.ours)
            )
    if not with_reference:
        why_not: str | None = NOT_ASKED_FOR
    elif settings.compile:
        why_not = "the literal formula is not compiled"
    else:
        why_not = why_not_literal(variants.native, variants.batch)
    if why_not is None:
        modules[REFERENCE] = make_literal(copy.deepcopy(variants.native), settings.product)
    with device, autocast(settings.autocast, device.type):
        steps = case.steps(modules, variants.batch)
    if settings.autocast:
        steps = {name: UnderAutocast(step, device.type) for name, step in steps.items()}
    path = path_of(steps[OURS], settings.compile)
    times = time_interleaved(steps, budget, timed=CudaTimer(device) if device.type == "cuda" else None)
    peak_native, peak_ours = (peak_bytes(steps[name], device) for name in (NATIVE, OURS))
    if settings.compile:
        torch.compiler.reset()  # else the next case counts as a recompilation of the same code
    return Row(
        group=case.group,
        name=case.name,
        path=path,
        seconds=dict(times.seconds),
        target=_target(case, settings),
        saved_native=saved_native,
        saved_ours=saved_ours,
        without_reference=why_not,
        waited=times.waited,
        size=case.size,
        peak_native=peak_native,
        peak_ours=peak_ours,
    )


def _target(case: Case, settings: Settings) -> float | None:
    """Return the target of a case; None for other dtypes and devices than float32 on the CPU."""
    if settings.dtype != "float32" or settings.device != "cpu":
        return None
    return case.time_target(settings.compile, settings.autocast)
