"""The page about any runs, gathered from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import weightshare
from weightshare.experiments.files import now, write_bytes
from weightshare.experiments.folder import Run
from weightshare.experiments.html import charts, pictures, sheets
from weightshare.experiments.html.shown import Shown, name_all

TITLE = "Training with tied weights"


def write(runs: Sequence[Run], path: Path, title: str = TITLE, about: str = "") -> None:
    """Write the page, whole or not at all; ``about`` is a paragraph below the headline."""
    write_bytes(path, render(runs, title, about).encode())


def render(runs: Sequence[Run], title: str = TITLE, about: str = "") -> str:
    """The page about these runs, in their order."""
    import jinja2

    if not runs:
        raise ValueError("a report needs a run; `weightshare train` makes runs")
    for run in runs:
        if not run.metrics():
            raise ValueError(f"the run in {run.path} has no epoch behind it yet")
    shown = name_all(runs)
    loader = jinja2.PackageLoader("weightshare.experiments.html", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    content = {
        "results": sheets.results(shown),
        "accuracy": list(pictures.accuracy(shown)),
        "clusters": list(pictures.clusters(shown)),
        "histograms": list(pictures.histograms(shown)),
        "filters": list(pictures.learned_filters(shown)),
        "files": sheets.files(shown),
        "bits": sheets.bits(shown),
        "settings": list(sheets.settings(shown)),
    }
    parts = [(id, name) for id, key, name in _PARTS if content[key]]
    return environment.get_template("report.html.j2").render(
        **content,
        title=title,
        about=about,
        runs_on=_runs_on(shown),
        parts=parts,
        runs=shown,
        charts=charts,
        footer=f"Written by weightshare {weightshare.__version__} on {now()}.",
    )


_PARTS = (
    ("results", "results", "Results"),
    ("accuracy", "accuracy", "Accuracy"),
    ("clusters", "clusters", "Clusters"),
    ("weights", "histograms", "Weights"),
    ("filters", "filters", "Filters"),
    ("bits", "bits", "Bits and files"),
    ("settings", "settings", "Settings"),
)


def _runs_on(shown: Sequence[Shown]) -> str:
    datasets = " and ".join(sorted({one.run.config["dataset"] for one in shown}))
    going = sum(not one.run.finished for one in shown)
    runs = f"{len(shown)} runs" if len(shown) > 1 else "One run"
    return f"{runs} on {datasets}" + (f", {going} of them not finished." if going else ".")
