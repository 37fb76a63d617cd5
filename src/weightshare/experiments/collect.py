"""Summaries of finished runs: from folders into one JSON file, and back from either."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightshare.experiments import recipes
from weightshare.experiments.files import read_json, write_json
from weightshare.experiments.folder import find_runs

FREE = ("seed", "threads", "matmul", "device")
"""Settings in which runs of one row may differ."""

ROW = ("variant", "train_share")
"""Settings that say which row it is."""


@dataclass(frozen=True)
class Record:
    """What a finished run has left: its summary, and its folder if it was read from there."""

    config: dict[str, Any]
    circumstances: dict[str, Any]
    metrics: dict[str, Any]
    folder: Path | None = None

    @property
    def settings(self) -> str:
        """What runs of one row have in common, as text that can be compared."""
        return json.dumps({k: v for k, v in self.config.items() if k not in FREE}, sort_keys=True)

    @property
    def standard(self) -> bool:
        """Whether nothing but the row and what is free differs from the recipe as it is now."""
        name, preset = self.config.get("recipe"), self.config.get("preset")
        if name not in recipes.RECIPES or preset not in recipes.presets(name):
            return False
        wanted = recipes.recipe(name, preset).to_dict()
        return all(self.config.get(k) == v for k, v in wanted.items() if k not in FREE + ROW)

    def matches(self, **wanted: Any) -> bool:
        """Whether the config has these values."""
        return all(self.config.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation (of a sample) over seeds.

    >>> Stat.of([0.5, 0.7]).mean, round(Stat.of([0.5, 0.7]).std, 4), Stat.of([0.5]).std
    (0.6, 0.1414, None)
    """

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Of the values that are there; None if there are none."""
        there = [v for v in values if v is not None and math.isfinite(v)]
        if not there:
            return None
        return cls(statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else None, len(there))


def read(sources: Sequence[Path]) -> list[Record]:
    """The finished runs below folders, and those in files that :func:`store` wrote; each once, the latest."""
    found: list[Record] = []
    for source in sources:
        found += _stored(source) if source.is_file() else _in_folders(source)
    latest: dict[tuple[str, Any], Record] = {}
    for record in sorted(found, key=lambda r: str(r.circumstances.get("date"))):
        latest[record.settings, record.config.get("seed")] = record
    return list(latest.values())


def _in_folders(root: Path) -> list[Record]:
    runs = [run for run in find_runs(root) if run.finished]
    summaries = [(run.path, run.summary()) for run in runs]
    return [Record(s["config"], s["circumstances"], s["metrics"], path) for path, s in summaries]


def _stored(file: Path) -> list[Record]:
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise ValueError(
            f"{file} does not hold summaries of runs; `weightshare table ... --store` writes them"
        )
    return [Record(run["config"], run["circumstances"], run["metrics"]) for run in content["runs"]]


def store(records: Sequence[Record], file: Path) -> None:
    """Write the summaries into one file, sorted, so that a later one can be compared with it."""
    if not records:
        raise ValueError(f"there are no finished runs to store in {file}; `weightshare train` makes some")

    def order(r: Record) -> tuple[str, str, Any]:
        return str(r.config.get("recipe")), r.settings, r.config.get("seed")

    runs = [
        {"config": r.config, "circumstances": r.circumstances, "metrics": r.metrics}
        for r in sorted(records, key=order)
    ]
    write_json(file, {"runs": runs})


def one_preset(records: Sequence[Record], preset: str | None) -> str:
    """The preset that was asked for, or the only one that there is."""
    there = sorted({str(r.config.get("preset")) for r in records})
    if preset is None and len(there) > 1:
        raise ValueError(f"there are runs of the presets {', '.join(there)}; choose one with --preset")
    return preset if preset is not None else (there[0] if there else "cpu")


def rows(records: Sequence[Record], **wanted: Any) -> tuple[list[Record], int]:
    """The final runs with these settings that differ in their seed alone, and how many others there are.

    Runs with a holdout were for tuning, and are not looked at. Of several sets of settings the recipe's own
    are taken, else the one with the most seeds, and of these the latest.
    """
    sets: dict[str, list[Record]] = {}
    for record in records:
        if record.matches(**wanted) and not record.config.get("holdout"):
            sets.setdefault(record.settings, []).append(record)
    if not sets:
        return [], 0

    def merit(runs: list[Record]) -> tuple[bool, int, str]:
        return runs[0].standard, len(runs), max(str(r.circumstances.get("date")) for r in runs)

    best = max(sets.values(), key=merit)
    return sorted(best, key=lambda r: int(r.config["seed"])), sum(map(len, sets.values())) - len(best)
