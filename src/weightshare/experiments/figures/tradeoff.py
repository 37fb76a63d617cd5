"""Accuracy against bits per weight: networks that were tied in training, and networks shrunk afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weightshare.experiments.figures import style
from weightshare.experiments.points import Spot, spots, title
from weightshare.experiments.shrink import AS_TRAINED, KMEANS, PRUNED

_AFTERWARDS = {
    KMEANS: ("k-means after training", "#cc79a7", "p"),
    PRUNED: ("pruned by magnitude", "#009e73", "X"),
    "int8": ("int8", "#000000", "*"),
    "int4": ("int4", "#000000", "1"),
}
_PANELS = {"bits": "whole file, bits per weight", "layer_bits": "regularised layers, bits per weight"}
_TICKS = (0.01, 0.03, 0.1, 0.3, 1, 2, 4, 8, 16, 32)


def figure(content: Mapping[str, Any]) -> Any:
    """Left: the whole file over all parameters; right: the regularised layers. Filled markers: healed."""
    found = spots(content)
    if not found:
        raise ValueError("there are no points to be drawn; `weightshare tradeoff` makes some")
    plt = style.pyplot()
    drawn, panels = plt.subplots(1, len(_PANELS), figsize=(10.4, 4.4), sharey=True)
    for axes, (key, label) in zip(panels, _PANELS.items()):
        for line in curves(found).values():
            _draw(axes, line, key)
        axes.set(xscale="log", xlabel=label)
        low, high = axes.get_xlim()
        axes.set_xticks([t for t in _TICKS if low <= t <= high], minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panels[0].set(ylabel="test accuracy, %", ylim=_range(found))
    seeds = sorted({spot.accuracy.count for spot in found})
    many = "1 seed" if seeds == [1] else f"{' to '.join(map(str, sorted({seeds[0], seeds[-1]})))} seeds"
    panels[0].set_title(f"{title(content)}\nmean over {many}", loc="left", fontsize=10)
    panels[1].set_title("filled: healed, hollow: as it is", loc="left", fontsize=10)
    panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def curves(found: Sequence[Spot]) -> dict[tuple[str, str, bool], list[Spot]]:
    """What is one line: the levels of one method, from few bits to many."""
    lines: dict[tuple[str, str, bool], list[Spot]] = {}
    for spot in sorted(found, key=lambda s: s.bits.mean):
        lines.setdefault(spot.curve, []).append(spot)
    order = [spot.curve for spot in found]
    return {key: lines[key] for key in sorted(lines, key=order.index)}


def _draw(axes: Any, line: Sequence[Spot], key: str) -> None:
    recipe, method, healed = line[0].curve
    label, colour, marker = style.model(recipe) if method == AS_TRAINED else _AFTERWARDS[method]
    axes.errorbar(
        [getattr(spot, key).mean for spot in line],
        [100 * spot.accuracy.mean for spot in line],
        yerr=[100 * (spot.accuracy.std or 0.0) for spot in line],
        color=colour, marker=marker, markersize=7, linewidth=1.2, elinewidth=0.8,
        ecolor=(colour, 0.4), linestyle="-" if healed else (0, (2, 2)),
        markerfacecolor=colour if healed else "white",
        label=None if healed else label,
    )  # fmt: skip


def _range(found: Sequence[Spot]) -> tuple[float, float]:
    """From a little below the worst of what was trained for it, so that what fails far below is cut off."""
    means = [100 * spot.accuracy.mean for spot in found]
    trained = [100 * s.accuracy.mean for s in found if s.way.method == AS_TRAINED]
    top, bottom = max(means), min(trained)
    room = max(top - bottom, 2.0)
    return max(bottom - room, min(means) - 0.1 * room), top + 0.15 * room
