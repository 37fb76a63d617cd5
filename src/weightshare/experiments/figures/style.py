"""What the figures have in common: colours that the colour-blind can tell apart, and how they are saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weightshare import checks
from weightshare.atomic import replacing

FORMATS = ("png", "svg")

# The palette of Okabe and Ito: a colour and a marker for each row of the tables, the same in every figure.
MODELS = {
    "cnn": ("CNN", "#4d4d4d", "s"),
    "mlp": ("MLP", "#56b4e9", "o"),
    "beta-lasso": ("β-lasso", "#009e73", "v"),
    "mlp-l1": ("MLP + l1", "#e69f00", "^"),
    "l1": ("l1", "#e69f00", "^"),
    "mlp-r": ("MLP + R", "#0072b2", "D"),
    "r": ("R", "#0072b2", "D"),
    "r-subgradient": ("R (subgradient)", "#cc79a7", "<"),
    "mlp-r-l1": ("MLP + R + l1", "#d55e00", "P"),
    "r-l1": ("R + l1", "#d55e00", "P"),
}

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "weightshare",  # the same figure twice is the same file
    "figure.constrained_layout.use": True,
}


def pyplot() -> Any:
    """matplotlib.pyplot, without a display, in our style."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(_SETTINGS)
    return plt


def model(recipe: str) -> tuple[str, str, str]:
    """Label, colour and marker of a recipe's row."""
    row = recipe.rsplit("/", 1)[-1]
    return MODELS.get(row, (recipe, "#000000", "x"))


def save(figure: Any, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write ``stem`` with each suffix, whole or not at all, and close the figure."""
    paths = []
    for suffix in formats:
        path = stem.with_name(f"{stem.name}.{checks.choice('format', suffix, FORMATS)}")
        metadata = {"Date": None} if suffix == "svg" else None
        with replacing(path) as file:
            figure.savefig(file, format=suffix, dpi=160, metadata=metadata)
        paths.append(path)
    pyplot().close(figure)
    return paths
