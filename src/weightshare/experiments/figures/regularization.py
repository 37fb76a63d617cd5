"""Figure 1 of the paper: contours of an error, and the area that R + l1 leaves to the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weightshare.experiments.figures import style
from weightshare.penalty import penalty

_SHAPE = torch.tensor([[1.6, -0.75], [-0.75, 1.0]], dtype=torch.float64)
_BEST = torch.tensor([1.05, 1.35], dtype=torch.float64)
SIZE = 1.0
"""R + l1 is at most this."""


def error(w: Tensor) -> Tensor:
    """A quadratic around weights that are not equal, for every pair of weights along the last dimension."""
    off = w - _BEST
    return torch.einsum("...i,ij,...j->...", off, _SHAPE, off)


def regularizer(w: Tensor) -> Tensor:
    """R + l1 of every pair of weights along the last dimension."""
    return penalty(w, dim=-1) + w.abs().sum(-1)


def optimum(steps: int = 4001) -> Tensor:
    """The pair with the least error on the border of the area, by trying all directions."""
    angle = torch.linspace(0, 2 * torch.pi, 8 * (steps // 8) + 1, dtype=torch.float64)
    ray = torch.stack([angle.cos(), angle.sin()], -1)
    border = ray * (SIZE / regularizer(ray))[:, None]
    return border[error(border).argmin()]


def figure() -> Any:
    """Contours of the error in blue, the area in grey, and the best weights in it: two equal ones."""
    plt = style.pyplot()
    drawn, axes = plt.subplots(figsize=(4.6, 4.4))
    grid = torch.linspace(-0.95, 1.95, 581, dtype=torch.float64)
    w = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)
    x, y = grid.numpy(), grid.numpy()
    area = regularizer(w).numpy()
    axes.contourf(x, y, area, levels=[0, SIZE], colors=["#d9d9d9"])
    axes.contour(x, y, area, levels=[SIZE], colors=["#4d4d4d"], linewidths=1.4)
    best = optimum()
    least = float(error(best))
    levels = [least * factor for factor in (0.1, 0.45, 1.0, 1.75)]
    axes.contour(x, y, error(w).numpy(), levels=levels, colors=["#0072b2"], linewidths=1.0)
    axes.plot([-0.95, 1.95], [-0.95, 1.95], color="#999999", linewidth=0.8, linestyle=(0, (4, 4)))
    axes.text(-0.72, -0.86, "$w_1 = w_2$", color="#666666", fontsize=9, ha="left")
    axes.plot(*_BEST.tolist(), marker="+", color="#0072b2", markersize=9, linestyle="none")
    axes.annotate(
        "least error", _BEST.tolist(), (-0.55, 1.55), color="#0072b2", fontsize=9, va="center",
        arrowprops={"arrowstyle": "-", "color": "#0072b2", "linewidth": 0.7, "shrinkB": 5},
    )  # fmt: skip
    axes.plot(*best.tolist(), marker="o", color="#d55e00", markersize=7, linestyle="none")
    axes.annotate("$w^\\star$", best.tolist(), (0.56, 0.3), color="#d55e00", fontsize=13)
    axes.text(
        -0.22, -0.22, "$R + \\ell_1$", fontsize=12, ha="center", va="center",
        bbox={"facecolor": "#d9d9d9", "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    axes.axhline(0, color="#808080", linewidth=0.6)
    axes.axvline(0, color="#808080", linewidth=0.6)
    axes.set(aspect="equal", xlabel="$w_1$", ylabel="$w_2$", xlim=(-0.95, 1.95), ylim=(-0.95, 1.95))
    axes.grid(False)
    return drawn
