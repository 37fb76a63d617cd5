"""Run times against d, from results/bench-prox.json.

python -m benchmarks.plots
"""

from __future__ import annotations

import json

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.measure import RESULTS
from weightshare.atomic import replacing

IMAGES = RESULTS.parent / "docs" / "images"


def _lines(axes: plt.Axes, points: list[dict]) -> None:
    """One line per contender."""
    for name in ("prox", "imminent", "search"):
        at = [(p["d"], p["times"][name]["median"]) for p in points if name in p["times"]]
        if at:
            axes.plot(*zip(*at), marker="o", label="certified" if name == "prox" else name)
    axes.set_xlabel("d")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)


def _save(figure: plt.Figure, name: str) -> None:
    """Put a picture in its place."""
    with replacing(IMAGES / name) as file:
        figure.savefig(file, dpi=150, format="png")


def main() -> None:
    """Write docs/images/prox-scaling.png and prox-worst-case.png."""
    content = json.loads((RESULTS / "bench-prox.json").read_text())["scaling"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, name in zip(axes, ("five clusters", "gaussian")):
        _lines(ax, content[name])
        ax.set(xscale="log", yscale="log", title=name)
    axes[0].legend()
    _save(figure, "prox-scaling.png")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, scale in zip(axes, ("linear", "log")):
        points = content["worst case"]
        _lines(ax, points if scale == "log" else [p for p in points if p["d"] <= 10**6])
        ax.set(xscale=scale, yscale=scale, title=f"worst case, {scale} scale")
    axes[0].set(xlim=(0, None), ylim=(0, None))
    axes[0].legend()
    _save(figure, "prox-worst-case.png")


if __name__ == "__main__":
    main()
