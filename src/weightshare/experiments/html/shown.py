"""A run with its place on the page: what it is called, and what its folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from weightshare.experiments import first_layer
from weightshare.experiments.figures import style
from weightshare.experiments.folder import Run


@dataclass(frozen=True)
class Shown:
    """A run with its number and its name on the page."""

    run: Run
    number: int
    name: str

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all epochs."""
        return self.run.metrics()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The final metrics; nothing while the run goes on."""
        found: dict[str, Any] = self.run.summary()["metrics"] if self.run.finished else {}
        return found

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The weights after training; nothing while the run goes on."""
        return first_layer.load(self.run.weights) if self.run.weights.is_file() else {}

    @cached_property
    def initial(self) -> dict[str, Tensor]:
        """The weights before training."""
        return first_layer.load(self.run.initial) if self.run.initial.is_file() else {}

    @property
    def layers(self) -> list[str]:
        """The matrices among the tensors that the run has counted."""
        counted: dict[str, Any] = next((row["layers"] for row in reversed(self.rows) if "layers" in row), {})
        return [name for name, layer in counted.items() if layer["weights"] > 1 and name.endswith("weight")]


def name_all(runs: Sequence[Run]) -> list[Shown]:
    """The runs in their order, each with a name that says in what it differs from the others."""
    bases = _bases(runs)
    names = [f"{base}{_differences(run, base, runs, bases)}" for run, base in zip(runs, bases)]
    if len(set(names)) < len(names):  # the same settings, in several folders
        names = [f"{name}, {run.path}" for name, run in zip(names, runs)]
    return [Shown(run, number, name) for number, (run, name) in enumerate(zip(runs, names))]


def _bases(runs: Sequence[Run]) -> list[str]:
    """As in the tables of the paper; with their experiment, where there are several."""
    recipes = [str(run.config["recipe"]) for run in runs]
    experiments = {recipe.partition("/")[0] for recipe in recipes}
    names = []
    for run, recipe in zip(runs, recipes):
        name = style.model(recipe)[0]
        if len(experiments) > 1:
            name = f"{recipe.partition('/')[0]} {name}"
        variant = str(run.config.get("variant", "plain"))
        names.append(name if variant == "plain" else f"{name} (-{variant.removeprefix('no-')})")
    return names


_NOT_TOLD = ("recipe", "variant", "evaluate_every", "threads", "matmul", "device")


def _differences(run: Run, base: str, runs: Sequence[Run], bases: Sequence[str]) -> str:
    """The settings in which a run differs from those of the same name, but for how it was run."""
    alike = [other.config for other, name in zip(runs, bases) if name == base]
    keys = [
        key
        for key in run.config
        if key not in _NOT_TOLD and any(c.get(key) != run.config[key] for c in alike)
    ]
    return "".join(f", {key} {setting(run.config[key])}" for key in keys)


def setting(value: Any) -> str:
    """A setting as a word."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
