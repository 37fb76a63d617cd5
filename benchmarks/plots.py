"""Run times against d, from results/bench-prox.json.

python -m benchmarks.plots
"""

from __future__ import annotations

import json

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.measure import RESULTS

IMAGES = RESULTS.parent / "docs" / "images"


def _lines(axes: plt.Axes, points: list[dict], unit: float) -> None:
    """One line per contender."""
    for name in ("prox", "imminent", "search"):
        at = [(p["d"], unit * p["times"][name]["median"]) for p in points if name in p["times"]]
        if at:
            axes.plot(*zip(*at), marker="o", label="certified" if name == "prox" else name)
    axes.set_xlabel("d")
    axes.set_ylabel("seconds" if unit == 1 else "milliseconds")
    axes.grid(alpha=0.3)


def main() -> None:
    """Write docs/images/prox-scaling.png and prox-worst-case.png."""
    content = json.loads((RESULTS / "bench-prox.json").read_text())["scaling"]
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, name in zip(axes, ("five clusters", "gaussian")):
        _lines(ax, content[name], 1)
        ax.set(xscale="log", yscale="log", title=name)
    axes[0].legend()
    figure.savefig(IMAGES / "prox-scaling.png", dpi=150)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, scale in zip(axes, ("linear", "log")):
        _lines(ax, content["worst case"], 1)
        ax.set(xscale=scale, yscale=scale, title=f"worst case, {scale} scale")
    axes[0].set(xlim=(0, 1.1e6), ylim=(0, None))
    axes[0].legend()
    figure.savefig(IMAGES / "prox-worst-case.png", dpi=150)


if __name__ == "__main__":
    main()
