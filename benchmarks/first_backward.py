"""What the first step of a process waits for: with nothing compiled yet, and with the code on disk.

    python benchmarks/first_backward.py

Each figure is that of a process of its own, forward and backward: wall time beside CPU time, since machines are rarely
alone. Before, the native layer has gone forward and backward once, so that torch's own first time is not in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

_LAST = "memory_format=torch.channels_last"
LAYERS = {
    "Linear 128×784→256": ("Linear(784, 256)", (128, 784)),
    "Conv2d 3×3 16→16": ("Conv2d(16, 16, 3, padding=1)", (8, 16, 32, 32)),
    "Conv2d 1×1 24→48": ("Conv2d(24, 48, 1)", (8, 24, 32, 32)),
    "Conv2d 3×3, channels last": (f"Conv2d(16, 16, 3, padding=1).to({_LAST})", (8, 16, 32, 32)),
    "Conv2d depthwise 3×3": ("Conv2d(64, 64, 3, padding=1, groups=64)", (8, 64, 32, 32)),
    "LSTM 512→512": ("LSTM(512, 512)", (17, 8, 512)),
}
SCRIPT = """
import time, torch, prproduct as pr
layer, x = torch.nn.{layer}, torch.randn({shape})
def value(layer):
    y = layer(x)
    return (y[0] if isinstance(y, tuple) else y).sum()
value(layer).backward()
layer = pr.convert(layer)
wall, used = time.perf_counter(), time.process_time()
value(layer).backward()
print(time.perf_counter() - wall, time.process_time() - used)
"""


def seconds(layer: str, shape: tuple[int, ...], cache: str) -> tuple[float, float]:
    """Wall time and CPU time."""
    environment = {**os.environ, "PRPRODUCT_CACHE": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT.format(layer=layer, shape=shape)]
    wall, used = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(used)


def main() -> None:
    """Print the figures of docs/speed.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for name, (layer, shape) in LAYERS.items():
        taken = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                taken.append([seconds(layer, shape, cache) for _ in ("compiled", "found on disk")])
        first, later = ("; ".join(f"{w:.2f} ({u:.2f})" for w, u in times) for times in zip(*taken, strict=True))
        print(f"{name}: {first} s compiled, {later} s from disk")


if __name__ == "__main__":
    main()
