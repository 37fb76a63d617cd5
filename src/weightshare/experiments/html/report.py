"""What stands in the HTML report, gathered from the folders of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import weightshare
from weightshare import metrics
from weightshare.experiments import filters, first_layer
from weightshare.experiments.files import now, write_bytes
from weightshare.experiments.folder import Run
from weightshare.experiments.html import charts
from weightshare.experiments.sheet import Cell, Sheet

Chart = dict[str, str]

FLOAT_BITS = 32

SIDE = 8
"""Filters along an edge of the sample."""
GROUPS, MEMBERS = 6, 8
"""Groups of translations that are shown, and filters of each."""


@dataclass(frozen=True)
class Shown:
    """A run with its place on the page."""

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


def write(runs: Sequence[Run], path: Path, title: str = "Training with tied weights") -> None:
    """Write the page, whole or not at all."""
    write_bytes(path, render(runs, title).encode())


def render(runs: Sequence[Run], title: str = "Training with tied weights") -> str:
    """The page about these runs, in their order."""
    import jinja2

    if not runs:
        raise ValueError("a report needs a run; `weightshare train` makes runs")
    shown = [Shown(run, i, name) for i, (run, name) in enumerate(zip(runs, _names(runs)))]
    for one in shown:
        if not one.rows:
            raise ValueError(f"the run in {one.run.path} has no epoch behind it yet")
    loader = jinja2.PackageLoader("weightshare.experiments.html", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    content = {
        "results": results(shown),
        "accuracy": list(accuracy(shown)),
        "clusters": list(clusters(shown)),
        "histograms": list(histograms(shown)),
        "filters": list(learned_filters(shown)),
        "bits": bits(shown),
        "settings": settings(shown),
    }
    parts = [(id, name) for id, key, name in _PARTS if content[key]]
    return environment.get_template("report.html.j2").render(
        **content,
        title=title,
        intro=_intro(shown),
        parts=parts,
        runs=shown,
        colours=charts.COLOURS,
        footer=f"Written by weightshare {weightshare.__version__} on {now()}.",
    )


_PARTS = (
    ("results", "results", "Results"),
    ("accuracy", "accuracy", "Accuracy"),
    ("clusters", "clusters", "Clusters"),
    ("weights", "histograms", "Weights"),
    ("filters", "filters", "Filters"),
    ("bits", "bits", "Bits"),
    ("settings", "settings", "Settings"),
)


def _names(runs: Sequence[Run]) -> list[str]:
    """The shortest part of each name that tells the runs apart: recipe, then preset, then seed."""
    full = [run.name.split("/") for run in runs]
    for keep in ((0,), (0, 2), (0, 1), (0, 1, 2)):
        names = ["/".join(parts[k] for k in keep if k < len(parts)) for parts in full]
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _intro(shown: Sequence[Shown]) -> str:
    datasets = " and ".join(sorted({one.run.config["dataset"] for one in shown}))
    going = sum(not one.run.finished for one in shown)
    runs = f"{len(shown)} runs" if len(shown) > 1 else "One run"
    return f"{runs} on {datasets}" + (f", {going} of them not finished." if going else ".")


def results(shown: Sequence[Shown]) -> Sheet:
    """The numbers at the end, a row for each run."""
    columns = ["Run", *(name for name, _, _ in _RESULTS)]
    rows: list[list[Cell]] = []
    for one in shown:
        last = {**one.rows[-1], **one.summary}
        rows.append([one.name, *(write(last.get(key)) for _, key, write in _RESULTS)])
    used = [c for c in range(len(columns)) if any(row[c] is not None for row in rows)]
    score = [_score(one) for one in shown]
    columns = [columns[c] for c in used]
    rows = [[row[c] for c in used] for row in rows]
    if any(s is not None for s in score):
        columns.append("Filter score")
        rows = [[*row, None if s is None else f"{s:.2f}"] for row, s in zip(rows, score)]
    return Sheet("Results", columns, _dashes(rows))


def _score(one: Shown) -> float | None:
    scores = (layer.get("filter_score") for layer in one.summary.get("layers", {}).values())
    return next((s for s in scores if s is not None), None)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def _whole(number: float | None) -> str | None:
    return None if number is None else f"{number:,.0f}"


def _decimal(number: float | None) -> str | None:
    return None if number is None else f"{number:.3g}"


_RESULTS = (
    ("Test accuracy", "test_accuracy", _percent),
    ("Validation accuracy", "valid_accuracy", _percent),
    ("Training accuracy", "train_accuracy", _percent),
    ("Prediction asymmetry", "asymmetry", _percent),
    ("Tied", "exact_sharing", _percent),
    ("Zero", "sparsity", _percent),
    ("Parameters", "parameters", _whole),
    ("Epochs", "epochs", _whole),
    ("Seconds per epoch", "seconds_per_epoch", _decimal),
)


def accuracy(shown: Sequence[Shown]) -> Iterator[Chart]:
    """Curves of accuracy and loss."""
    for key, label, caption in (
        ("test_accuracy", "test accuracy", "On test images."),
        ("valid_accuracy", "validation accuracy", "On the images that were kept from the training set."),
        ("train_accuracy", "training accuracy", "On the images that are trained on."),
        ("loss", "training loss", "Cross-entropy, on a logarithmic scale."),
    ):
        lines = [_series(one, key) for one in shown]
        svg = charts.line_chart(
            lines, x_label="epoch", y_label=label, percent=key != "loss", log=key == "loss"
        )
        if svg:
            yield {"svg": svg, "caption": caption}


def _series(one: Shown, key: str) -> charts.Series:
    points = [(row["epoch"], row[key]) for row in one.rows if row.get(key) is not None]
    return charts.Series(one.name, one.number, [x for x, _ in points], [y for _, y in points])


def clusters(shown: Sequence[Shown]) -> Iterator[Chart]:
    """A chart for each layer: distinct values against epochs."""
    for layer in dict.fromkeys(name for one in shown for name in one.layers):
        lines = []
        for one in shown:
            points = [(row["epoch"], row["layers"][layer]["distinct"]) for row in one.rows
                      if layer in row.get("layers", {})]  # fmt: skip
            lines.append(charts.Series(one.name, one.number, [x for x, _ in points], [y for _, y in points]))
        svg = charts.line_chart(lines, x_label="epoch", y_label="distinct values", log=True)
        if svg:
            yield {"svg": svg, "caption": layer}


def histograms(shown: Sequence[Shown]) -> Iterator[Chart]:
    """The weights of each counted layer before and after training."""
    for one in shown:
        for layer in one.layers:
            if layer not in one.weights:
                continue
            after = one.weights[layer].flatten().double().numpy()
            before = one.initial[layer].flatten().double().numpy() if layer in one.initial else None
            found = metrics.summary(one.weights[layer])
            counts = f"{found.weights:,} weights, {found.distinct:,} distinct values, {found.zeros:,} zeros"
            yield {
                "title": f"{one.name}, {layer}",
                "svg": charts.histogram(before, after, one.number),
                "caption": counts,
            }


def learned_filters(shown: Sequence[Shown]) -> Iterator[Chart]:
    """A sample of each first layer, and its groups of translations."""
    for one in shown:
        if first_layer.WEIGHT not in one.weights:
            continue
        layer = first_layer.of(one.run)
        pictures = layer.pictures()
        best = filters.most_nonzeros(pictures, SIDE * SIDE).tolist()
        groups = layer.groups()
        found = layer.likeness()
        lines = [group.rows[:MEMBERS] for group in groups[:GROUPS]]
        caption = (
            f"Score {found.score:.2f}, locality {found.locality:.2f}; "
            f"{found.alive:,} of {len(pictures):,} filters are not constant."
        )
        if lines:
            caption += f" Below: {len(lines)} of {len(groups)} groups of translations, one in each line."
        yield {
            "title": one.name,
            "sample": charts.png(_sheet([pictures[best[i : i + SIDE]] for i in range(0, SIDE * SIDE, SIDE)])),
            "groups": charts.png(_sheet([pictures[line] for line in lines])) if lines else "",
            "caption": caption,
        }


_BELOW, _ABOVE = (46, 134, 200), (217, 98, 43)


def _sheet(lines: Sequence[Tensor]) -> np.ndarray:
    """Lines of images on one transparent sheet, a pixel apart."""
    lines = [line for line in lines if len(line)]
    if not lines:
        return np.zeros((1, 1, 4), np.uint8)
    height, width = lines[0].shape[2:]
    columns = max(map(len, lines))
    sheet = np.zeros((len(lines) * (height + 1) + 1, columns * (width + 1) + 1, 4), np.uint8)
    sheet[...] = (128, 128, 128, 70)
    sheet[:, max(map(len, lines)) * (width + 1) + 1 :] = 0
    for i, line in enumerate(lines):
        top = i * (height + 1) + 1
        for j, image in enumerate(line):
            left = j * (width + 1) + 1
            sheet[top : top + height, left : left + width] = _pixels(image)
        sheet[top : top + height, len(line) * (width + 1) + 1 :] = 0
    return sheet


def _pixels(image: Tensor) -> np.ndarray:
    """A filter as colours on a clear ground; with three channels as a picture."""
    shown = filters.contrast(image[None])[0]
    shown = shown / shown.abs().max().clamp(min=1e-30)
    pixels = np.zeros((*image.shape[1:], 4), np.uint8)
    if len(image) == 3:
        pixels[..., :3] = (127.5 + 127.5 * shown).permute(1, 2, 0).numpy()
        pixels[..., 3] = 255
        return pixels
    value = shown.mean(0).numpy()
    pixels[..., :3] = np.where((value > 0)[..., None], _ABOVE, _BELOW)
    pixels[..., 3] = 255 * np.sqrt(np.abs(value))
    return pixels


def bits(shown: Sequence[Shown]) -> Sheet | None:
    """What a tensor takes when every distinct value is written once, and the weights as a code for them."""
    rows: list[list[Cell]] = [
        [one.name, name, *_sizes(metrics.summary(one.weights[name]))]
        for one in shown
        for name in one.layers
        if name in one.weights
    ]
    columns = [
        "Run", "Tensor", "Weights", "Distinct", "Zeros", "Bits per weight", "float32, kB", "Coded, kB",
        "Times smaller",
    ]  # fmt: skip
    note = (
        "Bits per weight is the entropy of the values, against 32 of a float32. Coded: the weights at that "
        "many bits, and 4 bytes for each distinct value; where most are distinct, float32 is smaller."
    )
    return Sheet("Bits", columns, rows, [note]) if rows else None


def _sizes(found: metrics.Summary) -> list[Cell]:
    plain = found.weights * FLOAT_BITS / 8
    coded = math.ceil(found.entropy * found.weights / 8) + found.distinct * FLOAT_BITS / 8
    coded = min(coded, plain)
    return [
        f"{found.weights:,}",
        f"{found.distinct:,}",
        f"{found.zeros:,}",
        f"{found.entropy:.2f}",
        f"{plain / 1e3:,.1f}",
        f"{coded / 1e3:,.1f}",
        f"{plain / coded:.1f}",
    ]


def settings(shown: Sequence[Shown]) -> Sheet:
    """Every setting, a column for each run; and where the runs were made."""
    keys = list(dict.fromkeys(key for one in shown for key in one.run.config))
    rows: list[list[Cell]] = [[key, *(_setting(one.run.config.get(key)) for one in shown)] for key in keys]
    where = ("date", "commit", "processor")
    rows += [[key, *(_setting(one.run.circumstances.get(key)) for one in shown)] for key in where]
    return Sheet("Settings", ["Setting", *(one.name for one in shown)], rows)


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)[:12] if isinstance(value, str) and len(value) == 40 else str(value)


def _dashes(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    return [["-" if cell is None else cell for cell in row] for row in rows]
