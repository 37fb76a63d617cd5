"""Write the tables of docs/reproduction.md, and its figures, from results/.

python -m benchmarks.reproduction
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import gradients
from benchmarks.measure import RESULTS
from benchmarks.page import fill, table
from weightshare.experiments import collect, recipes, tables
from weightshare.experiments.config import Config
from weightshare.experiments.figures import ratio, style, worst_case
from weightshare.experiments.files import read_json

PAGE = RESULTS.parent / "docs" / "reproduction.md"
IMAGES = RESULTS.parent / "docs" / "images"
_MISSING = "Not run yet."


def sweeps() -> str:
    """What each sweep has tried, and what it found."""
    rows = []
    for file in sorted(RESULTS.glob("sweep-*.json")):
        content = read_json(file)
        for found in content.get("sweeps", [content]):
            recipe, fixed = found["config"]["recipe"], _fixed(found)
            rows += [[recipe, *_trial(trial, fixed), f"`{file.name}`"] for trial in _ranked(found)]
    return (
        table(["recipe", "settings", "validation accuracy, %", "tied, %", "results/"], rows)
        if rows
        else _MISSING
    )


def _ranked(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(sweep["trials"], key=lambda trial: -(trial["valid_accuracy"] or 0.0))


def _fixed(sweep: dict[str, Any]) -> dict[str, Any]:
    """In what all its trials differ from the recipe as it is now."""
    swept = {key for trial in sweep["trials"] for key in trial["settings"]}
    changed = recipes.changes(Config.from_dict(sweep["config"]))
    return {k: v for k, v in changed.items() if k not in {*swept, *collect.FREE, "holdout", "evaluate_every"}}


def _trial(trial: dict[str, Any], fixed: dict[str, Any]) -> list[str]:
    """Settings, score and ties."""
    settings = ", ".join(f"{key}={_short(value)}" for key, value in {**trial["settings"], **fixed}.items())
    score = "stopped early" if trial["pruned"] else f"{100 * trial['valid_accuracy']:.2f}"
    ties = [value for key, value in trial.items() if key.startswith("exact_sharing")]
    return [settings, score, f"{100 * sum(ties) / len(ties):.1f}" if ties else ""]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def runs(experiment: str) -> list[collect.Record]:
    """The stored summaries of an experiment's runs."""
    return collect.read(sorted(RESULTS.glob(f"{experiment}-*.json")))


def sheets() -> dict[str, str]:
    """The tables of the paper."""
    torus, cifar = runs("torus"), runs("cifar10")
    runtime = RESULTS / "runtime.json"
    measured = read_json(runtime) if runtime.is_file() else None
    return {
        "torus": tables.torus(torus).markdown() if torus else _MISSING,
        "cifar10": tables.cifar10(cifar).markdown() if cifar else _MISSING,
        "runtime": tables.runtime(measured).markdown(),
        "complexity": tables.complexity(measured).markdown(),
    }


def figures() -> dict[str, tuple[str, Callable[[], Any]]]:
    """The figures that can be made of what is stored: name, words, and how to draw it."""
    found: dict[str, tuple[str, Callable[[], Any]]] = {}
    records = runs("torus")
    if len({record.config["train_share"] for record in records}) > 1:
        found["ratio"] = ("Test accuracy against training set", lambda: ratio.figure(records))
    measured = RESULTS / "worst-case.json"
    if measured.is_file():
        found["worst-case"] = (
            "Run time on the paper's worst case",
            lambda: worst_case.figure(read_json(measured)),
        )
    return found


def texts() -> dict[str, str]:
    """What stands between the markers of the page."""
    pictures = {name: f"![{words}](images/{_file(name)})" for name, (words, _) in figures().items()}
    missing = dict.fromkeys(("ratio", "worst-case"), _MISSING)
    return {"sweeps": sweeps(), **sheets(), **missing, **pictures, "gradients": gradients.shown()}


def _file(name: str) -> str:
    return f"reproduction-{name}.png"


def main() -> None:
    """Draw the figures and fill the page."""
    for name, (_, draw) in figures().items():
        style.save(draw(), (IMAGES / _file(name)).with_suffix(""), ("png",))
    fill(PAGE, texts())


if __name__ == "__main__":
    main()
