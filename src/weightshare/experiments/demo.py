"""The demonstration: the prox on a handful of weights, then the paper's experiment, small, on real digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import weightshare as ws
from weightshare.atomic import replacing
from weightshare.experiments import first_layer, html, recipes
from weightshare.experiments.collect import Record, Stat
from weightshare.experiments.config import Config
from weightshare.experiments.figures import style
from weightshare.experiments.folder import Run
from weightshare.experiments.html.sheets import file_sizes
from weightshare.experiments.sheet import PERCENT, Cell, Number, Sheet
from weightshare.experiments.tables import first_layer_score

RECIPES = ("digits/cnn", "digits/mlp", "digits/mlp-l1", "digits/mlp-r")
"""In the order of the paper's table, which is also the one from the quickest run to the slowest."""

TITLE = "Weight sharing on handwritten digits"

ABOUT = (
    "1,797 real digits of 8 by 8 pixels, which come with scikit-learn, each rolled once by a random shift, "
    "as if the image were a torus. A convolutional network (CNN) has the symmetry of the task built in. The "
    "multilayer perceptron (MLP) of the same sizes has not: it is trained as it is, with an l1 penalty, and "
    "with R, the penalty on the differences of all pairs of weights, whose proximal map ties weights bit for "
    "bit."
)


# The prox at work.


def weights() -> Tensor:
    """Three loose groups, one of them around zero, and two weights by themselves."""
    generator = torch.Generator().manual_seed(7)
    groups = [(-1.1, 0.09, 9), (0.0, 0.05, 8), (0.9, 0.11, 9)]
    parts = [c + s * torch.randn(n, generator=generator) for c, s, n in groups]
    return torch.cat([*parts, torch.tensor([0.45, 1.8])])


def clusters(w: Tensor, alpha: float, beta: float = 0.0, rho: float = 0.0) -> Sheet:
    """The clusters of one prox.

    >>> len(clusters(weights(), 0.5).rows)
    9
    """
    p, found = ws.prox(w, alpha, beta, rho, return_clusters=True)
    before, after = found.means(w).tolist(), found.means(p).tolist()
    rows: list[list[Cell]] = [
        [str(c), str(size), f"{before[c]:+.4f}", f"{after[c]:+.4f}"]
        for c, size in enumerate(found.sizes.tolist())
    ]
    note = f"{found!r}; R {float(ws.penalty(w)):.3f} -> {float(ws.penalty(p)):.3f}"
    title = f"prox(w, alpha={alpha}, beta={beta}, rho={rho})"
    return Sheet(title, ["Cluster", "Weights", "Their mean", "Shared value"], rows, [note])


def picture(w: Tensor, alpha: float, path: Path) -> None:
    """Draw the sticky particles on their way from the weights to the prox."""
    pyplot = style.pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    ws.particles(w, alpha).plot(axes, color=_WAY)
    axes.scatter(torch.zeros(w.numel()), w, s=14, color=_START, zorder=3)
    end, found = ws.prox(w, alpha, return_clusters=True)
    axes.scatter(torch.ones(w.numel()), end, s=14, color=_END, zorder=3)
    axes.set_title(f"{w.numel()} weights meet and stick: {found.count} values are left at time 1, the prox")
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


_WAY, _START, _END = "#0072b2", "#1a202c", "#d55e00"


# The experiment.


def configs(preset: str = "cpu", seeds: Sequence[int] = (0,)) -> list[Config]:
    """The runs, the slowest first, so that two processes are done at about the same time."""
    return [recipes.recipe(name, preset, seed=seed) for seed in seeds for name in reversed(RECIPES)]


def runs(wanted: Sequence[Config], root: Path) -> list[Run]:
    """The runs of these configs, which are finished, in the order of the table."""
    ordered = sorted(wanted, key=lambda config: (RECIPES.index(config.recipe), config.seed))
    return [Run.open(recipes.folder(config, root)) for config in ordered]


def results(done: Sequence[Run]) -> Sheet:
    """The paper's table for these runs: mean and standard deviation where there are several seeds."""
    rows = []
    for name in RECIPES:
        mine = [_record(run) for run in done if run.config["recipe"] == name]
        if mine:
            rows.append([style.model(name)[0], *(column(mine) for _, column in _COLUMNS)])
    return Sheet(TITLE, ["Model", *(head for head, _ in _COLUMNS)], rows, _NOTES)


def report(done: Sequence[Run], path: Path) -> None:
    """The HTML page about these runs."""
    html.write(done, path, TITLE, ABOUT)


def _record(run: Run) -> Record:
    summary = run.summary()
    plain, small = file_sizes(first_layer.load(run.weights))
    metrics = {**summary["metrics"], "file": small, "smaller": plain / small}
    return Record(summary["config"], summary["circumstances"], metrics)


def _stat(mine: Sequence[Record], value: Callable[[Record], float | None], scale: float, digits: int) -> Cell:
    stat = Stat.of(map(value, mine))
    return Number(stat, scale, digits) if stat else None


def _share(key: str) -> Callable[[Sequence[Record]], Cell]:
    return lambda mine: _stat(mine, lambda record: record.metrics[key], PERCENT, 2)


def _distinct(record: Record) -> float:
    """Of the regularised layers together."""
    return float(sum(row["distinct"] for row in record.metrics["layers"].values()))


def _dense(column: Callable[[Sequence[Record]], Cell]) -> Callable[[Sequence[Record]], Cell]:
    """A column that has no meaning for convolutions."""
    return lambda mine: None if mine[0].config["model"] == "cnn" else column(mine)


_COLUMNS: tuple[tuple[str, Callable[[Sequence[Record]], Cell]], ...] = (
    ("Test acc. %", _share("test_accuracy")),
    ("Pred. asym. %", _share("asymmetry")),
    ("Filter score", lambda mine: _stat(mine, first_layer_score, 1.0, 2)),
    ("Distinct", lambda mine: _stat(mine, _distinct, 1.0, 0)),
    ("Tied %", _dense(_share("exact_sharing"))),
    ("Zero %", _dense(_share("sparsity"))),
    ("File, kB", lambda mine: _stat(mine, lambda record: record.metrics["file"], 1e-3, 1)),
    ("Times smaller", lambda mine: _stat(mine, lambda record: record.metrics["smaller"], 1.0, 1)),
)

_NOTES = (
    "The test set has 360 images: of an accuracy around 65 % one standard error is 2.5 points.",
    "Pred. asym.: images with two translations that are predicted differently. Filter score: 1 for a "
    "convolution, about 0 for random weights.",
    "Distinct values, tied, zero: of the two regularised layers. File: all of the model by ws.save, bit "
    "for bit; times smaller than plain safetensors.",
)
