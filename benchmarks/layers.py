"""Time and saved memory of single layers, forward and backward, beside the native layer in the same run.

The two layers take turns, and medians are compared, because other work on the machine slows both. The spread is half
the distance between the quartiles of the paired ratios: a ratio with a wide spread was measured on a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import prproduct as pr

LAYERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "Linear 128×784→256": ("Linear", (784, 256), {}, (128, 784)),
    "Linear 2048×512→2048": ("Linear", (512, 2048), {}, (2048, 512)),
    "Conv2d 3×3 16→16 at 32², batch 128": ("Conv2d", (16, 16, 3), {"padding": 1, "bias": False}, (128, 16, 32, 32)),
    "Conv2d 3×3 64→64 at 8², batch 128": ("Conv2d", (64, 64, 3), {"padding": 1, "bias": False}, (128, 64, 8, 8)),
    "Conv2d 3×3 160→160 at 32², batch 8": ("Conv2d", (160, 160, 3), {"padding": 1, "bias": False}, (8, 160, 32, 32)),
    "Conv2d 1×1 96→48 at 32², batch 64": ("Conv2d", (96, 48, 1), {"bias": False}, (64, 96, 32, 32)),
    "Conv2d depthwise 3×3 64 at 32², batch 32": (
        "Conv2d",
        (64, 64, 3),
        {"padding": 1, "groups": 64, "bias": False},
        (32, 64, 32, 32),
    ),
    "LSTM 512→512, 17 steps, batch 64": ("LSTM", (512, 512), {}, (17, 64, 512)),
}


def step(layer: nn.Module, x: Tensor, grad: Tensor) -> float:
    """Seconds for one forward and backward."""
    layer.zero_grad()
    x.grad = None
    start = time.perf_counter()
    run(layer, x).backward(grad)
    return time.perf_counter() - start


def run(layer: nn.Module, x: Tensor) -> Tensor:
    """The output, of a recurrent layer without its last state."""
    output = layer(x)
    return output[0] if isinstance(output, tuple) else output


def saved_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes of the distinct storages, beside the parameters, that forward keeps for backward."""
    known = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = run(layer, x)
    assert output.requires_grad
    return sum(storages.values())


def main() -> None:
    """Measure every layer and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--product", default="pr")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"{options.product} beside native, forward and backward, float32, {options.threads} thread(s)")
    for heading in ("layer", "native ms", "time ratio", "spread", "saved ratio"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for label in track(LAYERS, description="layers"):
        name, arguments, keywords, shape = LAYERS[label]
        native = getattr(nn, name)(*arguments, **keywords)
        ours = getattr(pr.nn, name)(*arguments, **keywords, product=options.product)
        x = torch.randn(shape, requires_grad=True)
        grad = torch.randn_like(run(native, x))
        turns = [(step(native, x, grad), step(ours, x, grad)) for _ in range(options.repeats + 3)][3:]
        ratios = sorted(ours_time / native_time for native_time, ours_time in turns)
        lower, _, upper = statistics.quantiles(ratios, n=4)
        native_ms = 1e3 * statistics.median(native_time for native_time, _ in turns)
        memory = saved_bytes(ours, x) / saved_bytes(native, x)
        ratio = statistics.median(ratios)
        table.add_row(label, f"{native_ms:.2f}", f"{ratio:.2f}", f"± {(upper - lower) / 2:.2f}", f"{memory:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
