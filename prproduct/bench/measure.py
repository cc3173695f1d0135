"""One case, measured: time, memory, and which path ran."""

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
from prproduct.bench.machine import made_on, peak_bytes, timer_of
from prproduct.bench.profiling import kept_bytes, path_of
from prproduct.bench.results import NOT_ASKED_FOR, Row, Settings
from prproduct.bench.reward import RewardCase
from prproduct.bench.timing import AGAIN, NATIVE, OURS, REFERENCE, Budget, Step, take_turns
from prproduct.ops.autograd import Memory


@dataclass(frozen=True)
class Contenders:
    """The same module, natively and under the product, with a copy of the same weights each, and their batch."""

    native: nn.Module
    ours: nn.Module
    batch: Tensor

    @classmethod
    def of(cls, case: Case, product: str, dtype: torch.dtype, memory: Memory = "save") -> Contenders:
        """Those of a case; the seed makes them the same in every run."""
        torch.manual_seed(0)
        native = case.build().to(dtype)
        return cls(native, pr.convert(copy.deepcopy(native), product, memory=memory), case.batch(dtype))


@dataclass(frozen=True)
class UnderAutocast:
    """A contender's step in bfloat16, with parameters in float32."""

    step: Step
    device_type: str = "cpu"

    def prepare(self) -> None:
        self.step.prepare()

    def __call__(self) -> None:
        with autocast(True, self.device_type):
            self.step()


def autocast(enabled: bool, device_type: str = "cpu") -> AbstractContextManager[object]:
    """bfloat16, where it is asked for."""
    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=enabled)


def measure(case: Case | RewardCase, settings: Settings, budget: Budget, with_reference: bool = True) -> Row:
    """The row of a case."""
    if isinstance(case, RewardCase):
        return case.measure(budget)
    dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
    with made_on(device):
        contenders = Contenders.of(case, settings.product, dtype, settings.memory)
    modules = {NATIVE: contenders.native, OURS: contenders.ours, AGAIN: copy.deepcopy(contenders.native)}
    saved_native = saved_ours = None
    if settings.compile:
        modules = {name: cast(nn.Module, torch.compile(module, dynamic=False)) for name, module in modules.items()}
    else:
        with made_on(device), autocast(settings.autocast, device.type):
            saved_native, saved_ours = (
                kept_bytes(case.forward(module), contenders.batch) for module in (contenders.native, contenders.ours)
            )
    why_not = why_not_literal(contenders.native, contenders.batch) if with_reference else NOT_ASKED_FOR
    if why_not is None:
        modules[REFERENCE] = make_literal(copy.deepcopy(contenders.native), settings.product)
    with made_on(device), autocast(settings.autocast, device.type):
        steps = case.steps(modules, contenders.batch)
    if settings.autocast:
        steps = {name: UnderAutocast(step, device.type) for name, step in steps.items()}
    path = path_of(steps[OURS], settings.compile)
    times = take_turns(steps, budget, timed=timer_of(device))
    peak_native, peak_ours = (peak_bytes(steps[name], device) for name in (NATIVE, OURS))
    if settings.compile:
        torch.compiler.reset()  # or the next case would count as one more shape of the same code
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
    """Targets are for float32 on two cores."""
    if settings.dtype != "float32" or settings.device != "cpu":
        return None
    return case.time_target(settings.compile, settings.autocast)
