"""One case, measured: time, memory, and which path ran."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

import prproduct as pr
from prproduct.autograd import Memory
from prproduct.bench.cases import Case
from prproduct.bench.literal import make_literal, why_not_literal
from prproduct.bench.memory import kept_bytes
from prproduct.bench.paths import path_of
from prproduct.bench.reward import RewardCase
from prproduct.bench.rows import NOT_ASKED_FOR, Row, Settings
from prproduct.bench.timing import AGAIN, NATIVE, OURS, REFERENCE, Budget, take_turns


@dataclass(frozen=True)
class Contenders:
    """The same module, natively and under the product, with a copy of the same weights each, and their batch."""

    native: nn.Module
    ours: nn.Module
    batch: Tensor

    @classmethod
    def of(cls, case: Case, product: str, dtype: torch.dtype, memory: Memory = "auto") -> Contenders:
        """Those of a case; the seed makes them the same in every run."""
        torch.manual_seed(0)
        native = case.build().to(dtype)
        return cls(native, pr.convert(copy.deepcopy(native), product, memory=memory), case.batch(dtype))


def measure(case: Case | RewardCase, settings: Settings, budget: Budget, with_reference: bool = True) -> Row:
    """The row of a case."""
    if isinstance(case, RewardCase):
        return case.measure(budget)
    dtype = getattr(torch, settings.dtype)
    contenders = Contenders.of(case, settings.product, dtype, settings.memory)
    modules = {NATIVE: contenders.native, OURS: contenders.ours, AGAIN: copy.deepcopy(contenders.native)}
    saved_native, saved_ours, saved_target = None, None, None
    if settings.compile:
        modules = {name: cast(nn.Module, torch.compile(module, dynamic=False)) for name, module in modules.items()}
    else:
        saved_native, saved_ours, saved_target = _saved(case, contenders)
    why_not = why_not_literal(contenders.native, contenders.batch) if with_reference else NOT_ASKED_FOR
    if why_not is None:
        modules[REFERENCE] = make_literal(copy.deepcopy(contenders.native), settings.product)
    steps = case.steps(modules, contenders.batch)
    path = path_of(steps[OURS])
    times = take_turns(steps, budget)
    if settings.compile:
        torch.compiler.reset()  # or the next case would count as one more shape of the same code
    return Row(
        group=case.group,
        name=case.name,
        path=path,
        seconds=dict(times.seconds),
        target=case.time_target(settings.compile) if settings.dtype == "float32" else None,
        saved_native=saved_native,
        saved_ours=saved_ours,
        saved_target=saved_target,
        without_reference=why_not,
        waited=times.waited,
        size=case.size,
    )


def _saved(case: Case, contenders: Contenders) -> tuple[int, int, float | None]:
    """Bytes kept natively, by ours, and what ours may keep beside the native one."""
    native, ours = (
        kept_bytes(case.forward(module), contenders.batch) for module in (contenders.native, contenders.ours)
    )
    if not case.may_keep_output:
        return native, ours, case.saved_target
    with torch.no_grad():
        output = contenders.native(contenders.batch)
    return native, ours, 1 + output.nbytes / native
