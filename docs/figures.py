"""Draws the figures of the documentation: `python docs/figures.py` writes them to docs/figures/.

Every vector and every curve is measured: it comes from the library's own gradients, not from their formulas.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from prproduct import functional

FOLDER = Path(__file__).parent / "figures"
# Okabe and Ito's colours: told apart by colour-blind readers.
BLUE, GREEN, ORANGE, PURPLE, BLACK, GREY = "#0072b2", "#009e73", "#d55e00", "#aa4499", "#000000", "#888888"


def vector(length: float, angle: float) -> Tensor:
    """The vector of this length at this angle to the first axis."""
    return torch.tensor([length * math.cos(angle), length * math.sin(angle)], dtype=torch.float64)


def gradient_for_weight(product: str, w: Tensor, x: Tensor) -> Tensor:
    """∂/∂w of the product of w and x."""
    w = w.clone().requires_grad_()
    functional.linear(x, w, product=product).backward()
    assert w.grad is not None
    return w.grad


def halves(gradient: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The length gradient, along w, and the direction gradient, orthogonal to it."""
    along = (gradient @ w) / (w @ w) * w
    return along, gradient - along


def arrow(axes: Axes, start: Tensor, step: Tensor, colour: str, width: float = 2.0) -> None:
    """An arrow from `start` to `start + step`."""
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 16}
    axes.annotate("", tuple((start + step).tolist()), tuple(start.tolist()), arrowprops=look)


def label(axes: Axes, text: str, at: Tensor, away: Tensor, colour: str, distance: float) -> None:
    """A text beside a point, moved off it along a direction."""
    x, y = (at + distance * away / away.norm()).tolist()
    axes.text(x, y, text, color=colour, ha="center", va="center", fontsize=13)


def decomposition() -> None:
    """The paper's Figure 1: the two halves of the gradient for w, of which PR lengthens the second."""
    tilt, theta = math.radians(10), math.radians(30)
    w, x, origin = vector(3.3, tilt), vector(2.4, tilt + theta), vector(0.0, 0.0)
    normal = vector(1.0, tilt + math.pi / 2)
    arc = torch.linspace(tilt, tilt + theta, 30, dtype=torch.float64)
    _, panels = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    for axes, product in zip(panels, ("p", "pr"), strict=True):
        gradient = gradient_for_weight(product, w, x)
        along, across = halves(gradient, w)
        corner = torch.stack([-0.14 * w / w.norm(), -0.14 * w / w.norm() + 0.14 * normal, 0.14 * normal]) + along
        axes.plot(*corner.T.tolist(), color=GREY, linewidth=1.2)
        axes.plot((0.7 * arc.cos()).tolist(), (0.7 * arc.sin()).tolist(), color=GREY, linewidth=1.2)
        arrow(axes, origin, w, GREY)
        arrow(axes, origin, x, GREY)
        arrow(axes, origin, along, BLUE, 3.5)
        arrow(axes, along, across, ORANGE, 3.5)
        arrow(axes, origin, gradient, BLACK)
        label(axes, r"$\theta$", vector(0.7, tilt + theta / 2), w + x, GREY, 0.17)
        label(axes, r"$\mathbf{w}$", w, w, GREY, 0.15)
        label(axes, "length gradient\n" + r"$\mathbf{P_x}$", along / 2, -normal, BLUE, 0.35)
        if product == "p":
            axes.set_title("(a) inner product", fontsize=13)
            label(axes, "total gradient\n" + r"$\mathbf{x}$", x / 2, normal - w / w.norm(), BLACK, 0.6)
            label(axes, "direction\ngradient\n" + r"$\mathbf{R_x}$", along + across / 2, w, ORANGE, 0.62)
        else:
            axes.set_title("(b) PR product", fontsize=13)
            label(axes, r"$\mathbf{x}$", 0.75 * x, -normal, GREY, 0.18)
            label(axes, "total gradient", gradient / 2, normal - w / w.norm(), BLACK, 0.6)
            name = r"$\Vert\mathbf{x}\Vert\,\mathbf{E_{rx}}$"
            label(axes, "direction\ngradient\n" + name, along + across / 2, w, ORANGE, 0.62)
        axes.set(xlim=(-0.2, 3.5), ylim=(-0.3, 2.85), aspect="equal")
        axes.axis("off")
    save("decomposition")


def gradients_over_theta() -> None:
    """How long the direction gradient is, and the derivative for θ, over all angles."""
    weight_norm, input_norm = 2.0, 3.0
    w = vector(weight_norm, 0.0)
    angles = torch.linspace(0, math.pi, 202, dtype=torch.float64)[1:-1].tolist()
    away_from_x = vector(1.0, -math.pi / 2)  # x lies at +θ: turning w by dφ this way makes θ larger by dφ
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(1.25, 1), layout="constrained")
    for product, colour, label_x, label_y in (
        ("no-direction", BLACK, 3.2, 0.0),
        ("r", GREEN, 1.25, 0.42),
        ("tempered:0.5", PURPLE, 3.2, 0.2),
        ("p", BLUE, 3.2, 0.1),
        ("pr", ORANGE, 3.2, 1.0),
    ):
        gradients = [gradient_for_weight(product, w, vector(input_norm, theta)) for theta in angles]
        lengths = [halves(gradient, w)[1].norm().item() / input_norm for gradient in gradients]
        left.plot(angles, lengths, color=colour, linewidth=2)
        left.text(label_x, label_y, product, color=colour, va="center")
        if product in ("p", "pr"):
            slopes = [(gradient @ away_from_x).item() / input_norm for gradient in gradients]  # dw = ‖w‖·dφ
            right.plot(angles, slopes, color=colour, linewidth=2)
    marks = [math.pi * tenth / 10 for tenth in range(1, 10)]
    right.plot(marks, [-math.sin(theta) for theta in marks], "o", color=BLUE, markersize=6, markerfacecolor="white")
    right.plot(marks, [-1.0] * len(marks), "o", color=ORANGE, markersize=6, markerfacecolor="white")
    right.text(0.85, -0.55, "p: −sin θ (Equation 2)", color=BLUE)
    right.text(0.1, -1.08, "pr: −1 (Equation 10)", color=ORANGE, va="center")
    right.text(1.0, -0.05, "circles: the paper's formulas", color=GREY)
    for axes in (left, right):
        axes.set_xticks([0, math.pi / 2, math.pi], ["0", "π/2", "π"])
        axes.set_xlabel("angle θ between w and x")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines["bottom"].set_bounds(0, math.pi)
    left.set(title="length of the direction gradient, in units of ‖x‖", xlim=(-0.05, 4.2), ylim=(-0.05, 1.1))
    right.set(title="derivative for θ, in units of ‖w‖‖x‖", ylim=(-1.15, 0.05))
    save("gradients_over_theta")


def save(name: str) -> None:
    """Write the current figure; the same bytes every time."""
    plt.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close()


if __name__ == "__main__":
    plt.rcParams.update({"svg.hashsalt": "prproduct", "font.size": 11})
    FOLDER.mkdir(exist_ok=True)
    decomposition()
    gradients_over_theta()
