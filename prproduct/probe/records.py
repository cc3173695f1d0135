"""`AngleRecord`, the statistics of one product at one step, and its forms as JSON lines and TensorBoard events."""

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
    """The methods of a TensorBoard writer that a probe calls; torch's and tensorboardX's writers have them."""

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
    """One product of one layer at one sampled step. Angles are None if there was no pair, as in an empty batch.

    >>> record = AngleRecord(0, True, "fc", "", "pr", calls=1, pairs=2, zero_pairs=0, min_sin=0.6, mean_sin=0.8,
    ...     max_sin=1.0, max_cos=0.8, sample_min_sin=0.6, histogram=(0, 1, 0, 1), length_norm=4.0, direction_norm=3.0)
    >>> record.name, record.gradient_norm, record.direction_share
    ('fc', 5.0, 0.36)
    """

    step: int  # steps in training mode and in eval mode are counted separately
    training: bool
    layer: str  # its name in the model
    part: str  # which of the layer's products: "input_l0", "hidden_l0", "q", …; "" if it has one only
    product: str  # "p" for a native layer
    calls: int  # how often the layer ran in this step
    pairs: int
    zero_pairs: int  # pairs with a vector that is zero, too short or not finite: they count as orthogonal
    min_sin: float | None
    mean_sin: float | None
    max_sin: float | None
    max_cos: float | None
    sample_min_sin: float | None  # the paper's statistic: the minimum of each sample, averaged over samples
    histogram: tuple[int, ...]  # of |sin θ|, in bins of equal width from 0 to 1
    # Norms of the two parts of the weight's gradient, along the weight vectors and orthogonal to them; None without a
    # backward.
    length_norm: float | None = None
    direction_norm: float | None = None

    @classmethod
    def of(
        cls,
        step: int,
        training: bool,
        layer: str,
        part: str,
        product: str,
        calls: int,
        angles: AngleStatistics,
        gradient: GradientParts | None,
    ) -> AngleRecord:
        """Return the record of these statistics."""
        some = angles.pairs > 0
        return cls(
            step=step,
            training=training,
            layer=layer,
            part=part,
            product=product,
            calls=calls,
            pairs=angles.pairs,
            zero_pairs=angles.zero_pairs,
            min_sin=angles.min_sin if some else None,
            mean_sin=angles.sum_of_sin / angles.pairs if some else None,
            max_sin=angles.max_sin if some else None,
            max_cos=angles.max_cos if some else None,
            sample_min_sin=angles.sum_of_sample_min / angles.samples if some else None,
            histogram=tuple(angles.histogram),
            length_norm=None if gradient is None else gradient.length,
            direction_norm=None if gradient is None else gradient.direction,
        )

    @property
    def name(self) -> str:
        """Layer and part, joined by a slash."""
        return "/".join(part for part in (self.layer, self.part) if part)

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the weight's gradient."""
        if self.length_norm is None or self.direction_norm is None:
            return None
        return math.hypot(self.length_norm, self.direction_norm)

    @property
    def direction_share(self) -> float | None:
        """direction_norm² / gradient_norm²; None for a gradient of 0."""
        norm = self.gradient_norm
        if self.direction_norm is None or not norm:
            return None
        return (self.direction_norm / norm) ** 2


def write_jsonl(records: Iterable[AngleRecord], path: str | Path) -> None:
    """Append the records to a file, one JSON object per line. NaN and Inf become the strings "nan" and "inf".

    >>> import tempfile, torch, prproduct as pr
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> with pr.AngleProbe(net) as probe:
    ...     output = net(torch.randn(3, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pr.probe.write_jsonl(probe.records, f"{folder}/angles.jsonl")
    ...     pr.probe.read_jsonl(f"{folder}/angles.jsonl") == probe.records
    True
    """
    lines = [json.dumps(_as_json(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    with Path(path).open("a", encoding="utf-8") as file:
        file.writelines(lines)


def _as_json(record: AngleRecord) -> dict[str, Any]:
    values = asdict(record)
    odd = {name: str(values[name]) for name in _NUMBERS if not math.isfinite(values[name] or 0.0)}
    return {**values, **odd}


def read_jsonl(path: str | Path) -> list[AngleRecord]:
    """Return the records of a file that `write_jsonl` (see there) or a probe wrote."""
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
    """Write scalars and a histogram for each record, below `angles/`, or `angles/eval/` for eval mode."""
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
        # TensorBoard does not show sum and sum of squares; the latter is that of the bins' centres.
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
