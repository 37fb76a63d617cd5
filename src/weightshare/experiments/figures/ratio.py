"""Test accuracy against the share of the training set, MNIST on a torus, with error bars over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weightshare.experiments.collect import Record, Stat, one_preset, rows
from weightshare.experiments.figures import style

MODELS = ("cnn", "mlp", "mlp-l1", "mlp-r", "mlp-r-l1")


def curves(records: Sequence[Record], preset: str) -> dict[str, list[tuple[float, Stat]]]:
    """For each recipe the points: train share, and accuracy over seeds."""
    found: dict[str, list[tuple[float, Stat]]] = {}
    for name in MODELS:
        wanted = {"recipe": f"torus/{name}", "variant": "plain", "preset": preset}
        shares = sorted({r.config["train_share"] for r in records if r.matches(**wanted)})
        for share in shares:
            chosen, _ = rows(records, **wanted, train_share=share)
            stat = Stat.of(r.metrics.get("test_accuracy") for r in chosen)
            if stat is not None:
                found.setdefault(wanted["recipe"], []).append((share, stat))
    return found


def figure(records: Sequence[Record], preset: str | None = None) -> Any:
    """The paper's figure "test accuracy vs. dataset ratio", with what it lacks: the spread over seeds."""
    torus = [r for r in records if str(r.config.get("recipe", "")).startswith("torus/")]
    preset = one_preset(torus, preset)
    found = curves(torus, preset)
    if not any(len(points) > 1 for points in found.values()):
        raise ValueError(
            f"there are no runs of torus recipes with several shares of the training set (preset {preset}); "
            f"make some: `weightshare train torus/mlp-r --preset {preset} --set train_share=0.2`"
        )
    plt = style.pyplot()
    drawn, axes = plt.subplots(figsize=(7.2, 4.0))
    for recipe, points in sorted(found.items(), key=lambda item: -item[1][-1][1].mean):  # as the lines end
        label, colour, marker = style.model(recipe)
        x = [100 * share for share, _ in points]
        mean = [100 * stat.mean for _, stat in points]
        spread = [math.nan if stat.std is None else 100 * stat.std for _, stat in points]
        axes.errorbar(x, mean, spread, color=colour, marker=marker, markersize=5, capsize=3, label=label)
    seeds = [stat.count for points in found.values() for _, stat in points]
    many = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    band = f"mean over {many} seeds" + (", bars: ± one standard deviation" if max(seeds) > 1 else "")
    axes.set(xlabel="share of the training set, %", ylabel="test accuracy, %")
    axes.set_xticks(sorted({100 * share for points in found.values() for share, _ in points}))
    dataset = torus[0].config["dataset"]
    axes.set_title(f"{dataset} on a torus, preset {preset}\n{band}", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn
