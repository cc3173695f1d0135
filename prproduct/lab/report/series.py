"""The lines of a chart: means over seeds, with a band of one standard deviation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prproduct.lab.report.content import Line
from prproduct.lab.report.statistics import Sample

BAND = "Lines are means over seeds, bands one standard deviation to each side."
Values = Mapping[str, Mapping[int, Mapping[float, float]]]  # product → seed → epoch or step → value


def lines(values: Values) -> tuple[Line, ...]:
    """Return a line for each product: the mean over seeds, with a band of one standard deviation if there are several.

    >>> lines({"pr": {0: {1: 2.0, 2: 1.0}, 1: {1: 4.0, 2: math.nan}}})
    (Line(product='pr', x=(1, 2), y=(3.0, 1.0), low=(1.585..., 1.0), high=(4.414..., 1.0)),)
    """
    drawn = []
    for product, seeds in values.items():
        places = sorted({place for found in seeds.values() for place in found})
        samples = [_sample(found.get(place, math.nan) for found in seeds.values()) for place in places]
        mean = tuple(sample.mean for sample in samples)
        deviation = [sample.std or 0.0 for sample in samples]
        low = tuple(m - d for m, d in zip(mean, deviation, strict=True)) if any(deviation) else ()
        high = tuple(m + d for m, d in zip(mean, deviation, strict=True)) if any(deviation) else ()
        if places:
            drawn.append(Line(product, tuple(places), mean, low, high))
    return tuple(drawn)


def _sample(values: Iterable[float]) -> Sample:
    finite = [value for value in values if math.isfinite(value)]
    return Sample.of(finite) if finite else Sample(0, math.nan, None)
