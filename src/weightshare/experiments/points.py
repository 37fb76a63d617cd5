"""Accuracy against bits over seeds: spots of a figure, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weightshare.experiments import recipes
from weightshare.experiments.collect import FREE, Stat
from weightshare.experiments.config import Config
from weightshare.experiments.figures import style
from weightshare.experiments.sheet import PERCENT, Cell, Number, Sheet
from weightshare.experiments.shrink import AS_TRAINED, Way

Row = dict[str, Any]


@dataclass(frozen=True)
class Spot:
    """One way to make the network of one recipe small: what it brings, over seeds."""

    recipe: str
    way: Way
    accuracy: Stat
    bits: Stat
    """Of the whole file, for each parameter of the network."""
    layer_bits: Stat
    """Of the regularised layers alone, for each of their parameters."""
    distinct: Stat
    """Distinct values of these layers."""

    @property
    def curve(self) -> tuple[str, str, bool]:
        """What belongs to the same line: recipe, method, healed."""
        return self.recipe, self.way.method, self.way.healed


def spots(content: Mapping[str, Any]) -> list[Spot]:
    """The points of a file, those that differ in their seed alone together, in the order of the recipes."""
    groups: dict[tuple[str, Way], list[Row]] = {}
    order = {name: place for place, name in enumerate(recipes.RECIPES)}
    for entry in sorted(content["runs"], key=lambda e: order.get(e["config"]["recipe"], len(order))):
        for point in entry["points"]:
            way = Way(point["method"], point["level"], point["healed"])
            groups.setdefault((entry["config"]["recipe"], way), []).append(point)
    return [_spot(recipe, way, points) for (recipe, way), points in groups.items()]


def _spot(recipe: str, way: Way, points: Sequence[Row]) -> Spot:
    def stat(values: list[float]) -> Stat:
        found = Stat.of(values)
        assert found is not None
        return found

    return Spot(
        recipe,
        way,
        stat([p["test_accuracy"] for p in points]),
        stat([p["bits"] for p in points]),
        stat([p["layer_bits"] for p in points]),
        stat([sum(layer["distinct"] for layer in p["layers"].values()) for p in points]),
    )


def sheet(content: Mapping[str, Any]) -> Sheet:
    """A row for everything that is done to a network, as it is and healed."""
    columns = [
        "Network", "Test acc. %", "healed, %", "Bits per weight, file", "healed", "Regularised layers",
        "healed", "Distinct values", "Seeds",
    ]  # fmt: skip
    found = spots(content)
    healed = {(s.recipe, s.way.method, s.way.level): s for s in found if s.way.healed}
    rows = [
        _line(spot, healed.get((spot.recipe, spot.way.method, spot.way.level)))
        for spot in found
        if not spot.way.healed
    ]
    return Sheet(title(content), columns, rows, notes(content))


def _line(spot: Spot, healed: Spot | None) -> list[Cell]:
    label = style.model(spot.recipe)[0]
    return [
        label if spot.way.method == AS_TRAINED else f"{label}, {spot.way}",
        Number(spot.accuracy, PERCENT),
        Number(healed.accuracy, PERCENT) if healed else None,
        Number(spot.bits),
        Number(healed.bits) if healed else None,
        Number(spot.layer_bits, digits=3),
        Number(healed.layer_bits, digits=3) if healed else None,
        Number(spot.distinct, digits=0),
        str(spot.accuracy.count),
    ]


def title(content: Mapping[str, Any]) -> str:
    """Which networks."""
    configs = [entry["config"] for entry in content["runs"]]
    first = configs[0]
    data = f"{first['dataset']} on a torus" if content["experiment"] != "cifar10" else first["dataset"]
    return f"{data}, preset {first['preset']}, width {first['width']}"


def notes(content: Mapping[str, Any]) -> list[str]:
    """What has to be said about the numbers."""
    heals = [point["heal"] for entry in content["runs"] for point in entry["points"] if point["heal"]]
    epochs = sorted({heal["epochs"] for heal in heals})
    lrs = sorted({lr for heal in heals for lr in heal["lrs"]})
    found = [
        "File: all bytes of what ws.save writes, for each parameter of the network. Regularised layers: what "
        "their weights and biases take in it. Mean ± standard deviation over seeds."
    ]
    if heals:
        found.append(
            f"Healed: {', '.join(map(str, epochs))} more epochs with ties and zeros frozen, at the learning "
            f"rate (of {', '.join(f'{lr:g}' for lr in lrs)}) with the smallest loss on the training set."
        )
    return [*found, *_own_settings(content)]


def _own_settings(content: Mapping[str, Any]) -> list[str]:
    """Networks that were trained with other settings than their recipe has."""
    found: dict[str, None] = {}
    for entry in content["runs"]:
        changed = recipes.changes(Config.from_dict(entry["config"]))
        told = ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                         for key, value in changed.items() if key not in FREE)  # fmt: skip
        if told:
            found[f"{style.model(entry['config']['recipe'])[0]}: {told}."] = None
    return list(found)
