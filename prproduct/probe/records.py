"""What the probe found in one product at one step: as numbers, as lines of JSON, and in TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from prproduct.probe.angles import AngleStatistics
from prproduct.probe.gradients import GradientParts

SCALARS = ("min_sin", "mean_sin", "max_sin", "max_cos", "sample_min_sin")
GRADIENT_SCALARS = ("gradient_norm", "length_norm", "direction_norm", "direction_share")
_NUMBERS = (*SCALARS, "length_norm", "direction_norm")  # the fields that may be NaN or infinite


class SummaryWriter(Protocol):
    """What the probe asks of a TensorBoard writer; torch's and tensorboardX's have it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: list[float],
        bucket_counts: list[int],
        global_step: int,
    ) -> Any: ...


@dataclass(frozen=True)
class AngleRecord:
    """One product of one layer at one sampled step. The angles are None where there was no pair, as in an empty batch.

    >>> record = AngleRecord(0, True, "fc", "", "pr", calls=1, pairs=2, zero_pairs=0, min_sin=0.6, mean_sin=0.8,
    ...     max_sin=1.0, max_cos=0.8, sample_min_sin=0.6, histogram=(0, 1, 0, 1), length_norm=4.0, direction_norm=3.0)
    >>> record.name, record.gradient_norm, record.direction_share
    ('fc', 5.0, 0.36)
    """

    step: int  # counts the training steps, or those in eval mode
    training: bool
    layer: str  # its name in the model
    part: str  # which of the layer's products: "input_l0", "hidden_l0", "q", …; "" where there is but one
    product: str  # "p" for a native layer
    calls: int  # how often the layer ran in this step
    pairs: int
    zero_pairs: int  # of these, pairs with a vector that is (as good as) zero or not finite: they count as orthogonal
    min_sin: float | None
    mean_sin: float | None
    max_sin: float | None
    max_cos: float | None
    sample_min_sin: float | None  # the authors' statistic: a sample's minimum, averaged over the samples
    histogram: tuple[int, ...]  # of |sin θ|, in bins of equal width from 0 to 1
    length_norm: float | None = (
        None  # of the gradient's part along the weight vectors; None where there was no backward
    )
    direction_norm: float | None = None  # of the rest, which turns them

    @classmethod
    def of(
        cls,
        step: int,
        training: bool,
        layer: str,
        part: str,
        product: str,
        calls: int,
        found: AngleStatistics,
        gradient: GradientParts | None,
    ) -> AngleRecord:
        """From what was counted."""
        some = found.pairs > 0
        return cls(
            step=step,
            training=training,
            layer=layer,
            part=part,
            product=product,
            calls=calls,
            pairs=found.pairs,
            zero_pairs=found.zero_pairs,
            min_sin=found.min_sin if some else None,
            mean_sin=found.sum_of_sin / found.pairs if some else None,
            max_sin=found.max_sin if some else None,
            max_cos=found.max_cos if some else None,
            sample_min_sin=found.sum_of_sample_min / found.samples if some else None,
            histogram=tuple(found.histogram),
            length_norm=None if gradient is None else gradient.length,
            direction_norm=None if gradient is None else gradient.direction,
        )

    @property
    def name(self) -> str:
        """Layer and part, as figures and TensorBoard show them."""
        return "/".join(part for part in (self.layer, self.part) if part)

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the weight's whole gradient."""
        if self.length_norm is None or self.direction_norm is None:
            return None
        return math.hypot(self.length_norm, self.direction_norm)

    @property
    def direction_share(self) -> float | None:
        """direction_norm²/gradient_norm²; the share of the length is the rest to 1. None at a gradient of 0."""
        norm = self.gradient_norm
        if self.direction_norm is None or not norm:
            return None
        return (self.direction_norm / norm) ** 2


def write_jsonl(records: Iterable[AngleRecord], path: str | Path) -> None:
    """Append the records to a file, one JSON object a line; JSON has no NaN, which becomes "nan", and Inf "inf"."""
    lines = [json.dumps(_as_json(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    with Path(path).open("a", encoding="utf-8") as file:
        file.writelines(lines)


def _as_json(record: AngleRecord) -> dict[str, Any]:
    values = asdict(record)
    odd = {name: str(values[name]) for name in _NUMBERS if not math.isfinite(values[name] or 0.0)}
    return {**values, **odd}


def read_jsonl(path: str | Path) -> list[AngleRecord]:
    """The records of a file that `write_jsonl` or a probe wrote."""
    records, known = [], {field.name for field in fields(AngleRecord)}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            if not isinstance(values, dict) or set(values) != known:
                raise ValueError
            values |= {name: float(values[name]) for name in _NUMBERS if isinstance(values[name], str)}
        except ValueError:
            raise ValueError(f"{path}, line {number}: not a record of an AngleProbe") from None
        records.append(AngleRecord(**{**values, "histogram": tuple(values["histogram"])}))
    return records


def write_tensorboard(records: Iterable[AngleRecord], writer: SummaryWriter) -> None:
    """Scalars and a histogram for each record, below `angles/`, or `angles/eval/` for those of eval mode."""
    for record in records:
        tag = f"angles/{record.name}" if record.training else f"angles/eval/{record.name}"
        for scalar in (*SCALARS, *GRADIENT_SCALARS):
            value = getattr(record, scalar)
            if value is not None:
                writer.add_scalar(f"{tag}/{scalar}", value, record.step)
        if record.min_sin is None or record.mean_sin is None or record.max_sin is None:
            continue
        bins = len(record.histogram)
        centres = [(index + 0.5) / bins for index in range(bins)]
        # Sum and sum of squares are shown nowhere; the one is exact, the other that of the bins' centres.
        writer.add_histogram_raw(
            f"{tag}/sin",
            min=record.min_sin,
            max=record.max_sin,
            num=record.pairs,
            sum=record.mean_sin * record.pairs,
            sum_squares=sum(count * centre**2 for count, centre in zip(record.histogram, centres, strict=True)),
            bucket_limits=[(index + 1) / bins for index in range(bins)],
            bucket_counts=list(record.histogram),
            global_step=record.step,
        )
