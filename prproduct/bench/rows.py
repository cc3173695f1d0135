"""What was measured, as data: every single time, so that anyone can compute the medians again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from prproduct.bench.machine import Machine
from prproduct.bench.timing import Times, Verdict
from prproduct.ops.autograd import Memory

NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class Row:
    """One case."""

    group: str
    name: str
    path: str  # how our backward ran: C++, Triton, plain torch, inductor
    seconds: dict[str, list[float]]  # of every step, by contender
    target: float | None
    saved_native: int | None  # bytes kept for backward; None where they were not counted
    saved_ours: int | None
    without_reference: str | None  # why the literal formula was not run
    waited: float | None = None  # seconds per second without a core
    size: int | None = None  # what a sweep varies
    peak_native: int | None = None  # bytes that a step allocates at most, on a GPU
    peak_ours: int | None = None

    @property
    def times(self) -> Times:
        """What the seconds say."""
        return Times(self.seconds, self.waited)

    @property
    def verdict(self) -> Verdict:
        """Whether the time is within its target."""
        return self.times.verdict(self.target)

    @property
    def saved_ratio(self) -> float | None:
        """Bytes that ours keeps, beside the native layer's."""
        if self.saved_ours is None or not self.saved_native:
            return None
        return self.saved_ours / self.saved_native

    @property
    def peak_ratio(self) -> float | None:
        """Bytes that a step of ours takes at most, beside the native step's."""
        return None if self.peak_ours is None or not self.peak_native else self.peak_ours / self.peak_native


@dataclass(frozen=True)
class Settings:
    """What the command was asked for."""

    product: str = "pr"
    dtype: str = "float32"
    autocast: bool = False  # bfloat16
    threads: int = 1
    compile: bool = False
    sweep: str | None = None
    memory: Memory = "save"
    device: str = "cpu"

    def __str__(self) -> str:
        mode = "torch.compile on both sides" if self.compile else "eager"
        kept = "" if self.memory == "save" else f', memory="{self.memory}"'
        threads = f"{self.threads} thread{'s'[: self.threads > 1]}" if self.device == "cpu" else self.device
        dtype = "bfloat16 under autocast" if self.autocast else self.dtype
        return f"{self.product} beside native, {dtype}, {threads}, {mode}{kept}"


@dataclass(frozen=True)
class Report:
    """A whole run."""

    machine: Machine
    settings: Settings
    rows: list[Row]
    left_out: dict[str, str] = field(default_factory=dict)  # cases that could not be measured here, and why

    def to_json(self) -> str:
        """The run, with what follows from the times written beside them."""
        return json.dumps({**asdict(self), "rows": [{**asdict(row), **_derived(row)} for row in self.rows]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The run again; all but the measured figures is computed anew."""
        data = json.loads(text)
        known = {field.name for field in fields(Row)}
        rows = [Row(**{name: value for name, value in row.items() if name in known}) for row in data["rows"]]
        return cls(Machine(**data["machine"]), Settings(**data["settings"]), rows, data.get("left_out", {}))


def _derived(row: Row) -> dict[str, Any]:
    times = row.times
    return {
        "native_ms": times.native_ms,
        "ratio": times.ratio,
        "spread": times.spread,
        "self_difference": times.self_difference,
        "reference_ratio": times.reference_ratio,
        "verdict": row.verdict,
        "saved_ratio": row.saved_ratio,
        "peak_ratio": row.peak_ratio,
    }
