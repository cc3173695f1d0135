"""What the first forward and backward of a process take beyond later ones.

    python benchmarks/first_backward.py

Each figure is that of a process of its own: wall time beside CPU time, since machines are rarely alone. Before, the
native layer has gone forward and backward once, so that torch's own first time is not in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

LAYERS = {
    "Linear 128×784→256": ("Linear(784, 256)", (128, 784)),
    "Conv2d 3×3 16→16": ("Conv2d(16, 16, 3, padding=1)", (8, 16, 32, 32)),
    "Conv2d depthwise 3×3": ("Conv2d(64, 64, 3, padding=1, groups=64)", (8, 64, 32, 32)),
    "LSTM 512→512": ("LSTM(512, 512)", (17, 8, 512)),
}
SCRIPT = """
import time, torch, prproduct as pr
layer, x = torch.nn.{layer}, torch.randn({shape})
def step(layer):
    wall, used = time.perf_counter(), time.process_time()
    y = layer(x)
    (y[0] if isinstance(y, tuple) else y).sum().backward()
    return time.perf_counter() - wall, time.process_time() - used
for _ in range(3):
    step(layer)
layer = pr.convert(layer)
first = step(layer)
later = sorted(step(layer) for _ in range(9))[4]
print(first[0] - later[0], first[1] - later[1])
"""


def seconds(layer: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Wall time and CPU time of the first step beyond a later one."""
    command = [sys.executable, "-c", SCRIPT.format(layer=layer, shape=shape)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    wall, used = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(used)


def main() -> None:
    """Print the figures of docs/speed.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, (layer, shape) in LAYERS.items():
        wall, used = zip(*(seconds(layer, shape) for _ in range(rounds)), strict=True)
        print(f"{name}: {1e3 * statistics.median(wall):.1f} ms ({1e3 * statistics.median(used):.1f} ms of CPU time)")


if __name__ == "__main__":
    main()
