"""Which path a backward really took: found out by counting, not by asking what should serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch._dynamo.utils import counters

from prproduct.kernels import pairs, splitting
from prproduct.kernels.scores import Score

COMPILED, PLAIN, INDUCTOR, NATIVE = "compiled", "plain torch", "inductor", "native"


def path_of(step: Callable[[], object]) -> str:
    """The path of one step's backward; several, joined by +, if its layers took several.

    >>> import prproduct as pr
    >>> layer, x = pr.nn.Linear(3, 2), torch.ones(4, 3)
    >>> path_of(lambda: layer(x).sum().backward())
    'compiled'
    >>> from prproduct.kernels import compiled
    >>> with compiled.switched_off():
    ...     path_of(lambda: layer(x).sum().backward())
    'plain torch'
    """
    counts = dict.fromkeys((COMPILED, PLAIN, INDUCTOR), 0)
    graphs = counters["stats"]["unique_graphs"]
    with (
        mock.patch.object(Score, "play", _counting(Score.play, counts, COMPILED)),
        mock.patch.object(splitting, "measure", _counting(pairs.measure, counts, PLAIN)),
    ):
        step()
    counts[INDUCTOR] = counters["stats"]["unique_graphs"] - graphs
    return " + ".join(path for path, count in counts.items() if count) or NATIVE


def _counting(function: Callable[..., Any], counts: dict[str, int], path: str) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling():  # else it is traced, and does not run
            counts[path] += 1
        return function(*arguments)

    return counted
