"""Prints the two tables of speed.md that are derived on paper: `python docs/speed.py`.

With files of `prproduct bench --json`, the table of what was measured: `python docs/speed.py layers.json nets.json`.

Numbers moved are counted in the source: `kernels/passes.py` and `convolution_passes.py` for the compiled path, where
the box sums of an image stay in the cache; `kernels/pairs.py`, `splitting.py` and `windows.py` for plain torch, where
every operation reads its operands and writes its result.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from prproduct.bench.cases import CASES, Case
from prproduct.bench.rows import Report
from prproduct.bench.timing import Verdict
from prproduct.kernels.usual_convolution import FEW

FLOAT = 4  # bytes


class Passes(NamedTuple):
    """What a backward does beside the native one: numbers moved per element, and how many kernels do it."""

    per_output: float
    per_input: float
    per_window: float  # a linear layer's windows are its rows
    kernels: int
    kernels_of_windows: int  # where a kernel is wider than 1


LIMIT = Passes(3, 0, 0, 1, 0)  # g and p read once, D∘g written once
COMPILED = Passes(3, 4, 2, 6, 0)  # of a window, one coefficient is written and read
PLAIN = Passes(41.5, 10, 24, 46, 10)
RULE_FUSED = Passes(5, 10, 24, 29, 10)  # a GPU in eager mode: three kernels in place of the rule's 20
FUSED = Passes(5, 4, 4, 6, 0)  # sums over two different axes: (L − D)·cos θ·g is written, and read again
NUMBERS_OF_BOX_SUMS = 28  # per window, in plain torch: 2 × (a padding, and two additions on each of two axes)


class Layer(NamedTuple):
    """What a layer of the table computes and moves."""

    name: str
    outputs: int
    inputs: int
    windows: int
    operations: int  # of one of its three products
    has_box_sums: bool
    is_whole: bool  # compiled, it reads x, p and g and writes dX: as much as the native backward, which it replaces
    is_laid_out: bool  # compiled, it writes x with channels last, which the native backward does at least as often

    @classmethod
    def of(cls, case: Case) -> Layer:
        """Measured on the meta device."""
        with torch.device("meta"):
            layer, batch = case.build(), torch.empty(case.shape)
            output = layer(batch)
        assert isinstance(layer, (nn.Linear, nn.Conv2d))
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        windows = output.numel() // layer.weight.shape[0] * groups
        operations = 2 * output.numel() * layer.weight[0].numel()
        if isinstance(layer, nn.Linear):
            return cls(case.name, output.numel(), batch.numel(), windows, operations, False, False, False)
        wide, few = max(layer.kernel_size) > 1, layer.in_channels * layer.out_channels <= FEW
        return cls(
            case.name, output.numel(), batch.numel(), windows, operations, wide, groups > 1 or not wide, few and wide
        )

    def numbers(self, passes: Passes, box_sums: float = NUMBERS_OF_BOX_SUMS) -> float:
        """Moved beside the native backward."""
        per_window = passes.per_window + (box_sums if self.has_box_sums else 0)
        return self.outputs * passes.per_output + self.inputs * passes.per_input + self.windows * per_window


class Device(NamedTuple):
    """A GPU, as its data sheet has it."""

    name: str
    operations: float  # a second
    bytes: float  # a second


DEVICES = [
    Device("A100, FP32", 19.5e12, 2.04e12),
    Device("A100, TF32", 156e12, 2.04e12),
    Device("H100, TF32", 494e12, 3.35e12),
]
LAUNCH = 3e-6  # seconds: no kernel takes less


def native_seconds(layer: Layer, device: Device) -> float:
    """Three products, each as fast as arithmetic or memory allows."""
    moved = FLOAT * (layer.inputs + layer.outputs)
    return 3 * max(layer.operations / device.operations, moved / device.bytes, LAUNCH)


def extra_seconds(layer: Layer, device: Device, passes: Passes, box_sums: float) -> float:
    """The other passes, as fast as memory and launches allow."""
    kernels = passes.kernels + (passes.kernels_of_windows if layer.has_box_sums else 0)
    return max(FLOAT * layer.numbers(passes, box_sums) / device.bytes, kernels * LAUNCH)


def bytes_table(layers: list[Layer]) -> list[str]:
    """Bytes moved per element of the output."""
    lines = ["| layer | limit | compiled | plain torch | fused | native |", "| --- | --- | --- | --- | --- | --- |"]
    for layer in layers:
        native = 3 * (layer.inputs + layer.outputs)
        numbers = [
            layer.numbers(LIMIT, 0),
            0 if layer.is_whole else layer.numbers(COMPILED, 0) + layer.inputs * layer.is_laid_out,
            layer.numbers(PLAIN),
            layer.numbers(FUSED, 0),
            native,
        ]
        lines.append(" | ".join([f"| {layer.name}", *(f"{FLOAT * n / layer.outputs:.0f}" for n in numbers)]) + " |")
    return lines


def prediction_table(layers: list[Layer]) -> list[str]:
    """The time beside the native layer's, eager and compiled."""
    headings = [f"{device.name}: {mode}" for device in DEVICES for mode in ("eager", "fused")]
    lines = [f"| layer | {' | '.join(headings)} |", "| --- " * (1 + len(headings)) + "|"]
    for layer in layers:
        cells = []
        for device in DEVICES:
            native = native_seconds(layer, device)
            for passes, box_sums in ((RULE_FUSED, NUMBERS_OF_BOX_SUMS), (FUSED, 0)):
                cells.append(f"{1 + extra_seconds(layer, device, passes, box_sums) / native:.2f}")
        lines.append(f"| {layer.name} | {' | '.join(cells)} |")
    return lines


def measured_table(report: Report) -> list[str]:
    """What a run measured; ? where it was too noisy to judge."""
    headings = ["case", "native ms", "time", "spread", "target", "literal", "saved", "at most"]
    lines = [f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|"]
    for row in report.rows:
        times = row.times
        mark = " ?" if row.verdict is Verdict.NOISY else ""
        literal = "–" if times.reference_ratio is None else f"{times.reference_ratio:.1f}"
        lines.append(
            f"| {row.name} | {times.native_ms:.1f} | {times.ratio:.2f}{mark} | {times.spread:.2f} | {row.target} "
            f"| {literal} | {row.saved_ratio:.2f} | {row.saved_target:.2f} |"
        )
    return lines


def derived_tables() -> list[list[str]]:
    """Both."""
    layers = [Layer.of(case) for case in CASES if isinstance(case, Case) and case.group in ("linear", "conv")]
    return [bytes_table(layers), prediction_table(layers)]


if __name__ == "__main__":
    reports = [Report.from_json(Path(name).read_text()) for name in sys.argv[1:]]
    for table in [measured_table(report) for report in reports] if reports else derived_tables():
        print("\n".join([*table, ""]))
