"""Run times on the paper's worst case for Imminent Collisions, on a linear and on a logarithmic scale."""

from __future__ import annotations

from typing import Any

from weightshare.experiments.figures import style

_LOOKS = {
    "imminent": ("Imminent Collisions (v2)", "#d55e00", "o"),
    "search": ("Search Collisions", "#0072b2", "s"),
    "auto": ("certified prox (ours)", "#009e73", "D"),
}


def figure(measured: dict[str, Any]) -> Any:
    """From what :func:`weightshare.experiments.runtime.worst_case` measured."""
    plt = style.pyplot()
    drawn, (linear, log) = plt.subplots(1, 2, figsize=(9.2, 3.9))
    for name, (label, colour, marker) in _LOOKS.items():
        points = [(p["weights"], p["seconds"][name]) for p in measured["points"] if name in p["seconds"]]
        for axes in (linear, log):
            axes.plot(*zip(*points), color=colour, marker=marker, markersize=4, label=label)
    most = max(p["weights"] for p in measured["points"] if "imminent" in p["seconds"])
    linear.set(xlim=(0, 1.05 * most), title="linear scale")
    top = max(p["seconds"]["imminent"] for p in measured["points"] if "imminent" in p["seconds"])
    linear.set_ylim(0, 1.05 * top)
    log.set(xscale="log", yscale="log", title="log scale")
    for axes in (linear, log):
        axes.set(xlabel="number of weights d", ylabel="seconds")
    linear.legend()
    where = measured["circumstances"]["processor"]
    drawn.suptitle(f"Worst case: {where}, {measured['threads']} threads", fontsize=10)
    return drawn
