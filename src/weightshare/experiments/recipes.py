"""The recipes: the rows of the paper's tables as configs, at the paper's size and at smaller ones.

Facts of the paper and of its authors' code are the ``paper`` preset. ``cpu`` is narrower and shorter, so that
one thread of a laptop takes minutes. alpha / (d - 1) is the pull between two of d weights: coefficients that
suit 10^8 weights need not suit 10^6, so ``cpu`` has its own, found on a validation split. ``smoke`` takes
seconds, on the digits that come with scikit-learn, and shows that everything runs.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from pathlib import Path
from typing import Any

from weightshare import checks
from weightshare.experiments.config import Config

__all__ = ["PRESETS", "RECIPES", "Config", "changes", "expand", "folder", "presets", "recipe"]

PRESETS = ("paper", "cpu", "smoke")

Settings = dict[str, Any]

_CNN: Settings = {"model": "cnn", "dropout": 0.0}

_ROWS: dict[str, Settings] = {
    # MNIST on a torus: Table 2.
    "torus/cnn": _CNN,
    "torus/mlp": {},
    "torus/mlp-l1": {"method": "l1", "beta": 1e-4},
    "torus/mlp-r": {"method": "prox", "alpha": 1e-3, "alpha_ratio": 0.1},
    "torus/mlp-r-l1": {"method": "prox", "alpha": 1e-3, "alpha_ratio": 0.1, "beta": 1e-4},
    # CIFAR10: Table 3.
    "cifar10/cnn": _CNN,
    "cifar10/mlp": {},
    "cifar10/beta-lasso": {"method": "beta-lasso", "beta": 1e-5, "rho": 0.98},
    "cifar10/l1": {"method": "l1", "beta": 1e-3, "rho": 0.98},
    "cifar10/r-subgradient": {"method": "subgradient", "alpha": 1e-3},
    "cifar10/r": {"method": "prox", "alpha": 1e-3, "rho": 0.98},
    "cifar10/r-l1": {"method": "prox", "alpha": 2e-4, "beta": 1e-3, "rho": 0.98},
    # The demo's: the torus experiment on 8 x 8 digits.
    "digits/cnn": _CNN,
    "digits/mlp": {},
    "digits/mlp-l1": {"method": "l1", "beta": 1e-4},
    "digits/mlp-r": {"method": "prox", "alpha": 1e-3, "alpha_ratio": 0.1},
}

RECIPES = tuple(_ROWS)

_TORUS: Settings = {
    "dataset": "mnist",
    "train_share": 0.6,
    "width": 32,
    "dropout": 0.4,
    "epochs": 200,
    "momentum": 0.9,
    "coupling": "decoupled",
    "layers": (1, 2),
}

# One thread a run: several at a time use a machine better than several threads do. Matrix products by the
# fastest kernels for float32: twice as fast with AVX-512; see Config.
_PROCESSOR: Settings = {"threads": 1, "matmul": "medium", "device": "cpu"}

_PRESETS: dict[str, dict[str, Settings]] = {
    "torus": {
        "paper": _TORUS,
        "cpu": {**_TORUS, "width": 4, "epochs": 40, "evaluate_every": 5, **_PROCESSOR},
        "smoke": {
            **_TORUS,
            "dataset": "digits",
            "width": 2,
            "epochs": 5,
            "batch": 32,
            "threads": 1,
            "device": "cpu",
        },
    },
    "cifar10": {
        "paper": {"dataset": "cifar10", "width": 64, "epochs": 400, "augment": True},
        "cpu": {
            "dataset": "cifar10",
            "width": 8,
            "epochs": 30,
            "augment": True,
            "evaluate_every": 2,
            **_PROCESSOR,
        },
        "smoke": {
            "dataset": "digits",
            "width": 1,
            "epochs": 2,
            "augment": True,
            "batch": 128,
            "threads": 1,
            "device": "cpu",
        },
    },
    # All of the few images that there are.
    "digits": {
        "cpu": {
            **_TORUS,
            "dataset": "digits",
            "train_share": 1.0,
            "width": 8,
            "dropout": 0.0,
            "lr": 0.3,
            "epochs": 60,
            "batch": 64,
            "evaluate_every": 2,
            "threads": 1,
            "device": "cpu",
        },
        "smoke": {
            **_TORUS,
            "dataset": "digits",
            "width": 2,
            "epochs": 5,
            "batch": 32,
            "threads": 1,
            "device": "cpu",
        },
    },
}

# Where a row has its own settings in a preset; see results/ for the sweeps behind them.
_OWN: dict[tuple[str, str], Settings] = {
    ("torus/mlp-l1", "cpu"): {"beta": 3e-4},
    ("torus/mlp-r", "cpu"): {"alpha": 3e-3},
    ("torus/mlp-r-l1", "cpu"): {"alpha": 3e-3},
    # results/sweep-cifar10-*.json. With the learning rate in alpha, ties part again while it falls.
    ("cifar10/beta-lasso", "cpu"): {"beta": 1e-4},
    ("cifar10/l1", "cpu"): {"beta": 3e-3, "coupling": "decoupled"},
    ("cifar10/r-subgradient", "cpu"): {"alpha": 1e-4},
    ("cifar10/r", "cpu"): {"alpha": 3e-3, "coupling": "decoupled"},
    ("cifar10/r-l1", "cpu"): {"alpha": 6e-4, "beta": 3e-3, "coupling": "decoupled"},
    # results/sweep-digits.json; R ties best without dropout, whose noise parts what is tied.
    ("digits/mlp", "cpu"): {"lr": 1.0, "dropout": 0.4},
    ("digits/mlp-l1", "cpu"): {"lr": 1.0, "dropout": 0.4, "beta": 3e-4},
    ("digits/mlp-r", "cpu"): {"alpha": 2e-3, "alpha_ratio": 1.0},
}


def presets(name: str) -> tuple[str, ...]:
    """The presets of a recipe."""
    return tuple(_PRESETS[checks.choice("recipe", name, RECIPES).partition("/")[0]])


def recipe(name: str, preset: str = "cpu", **settings: Any) -> Config:
    """The config of a row, with ``settings`` on top.

    >>> recipe("torus/mlp-r", "paper").alpha
    0.001
    >>> recipe("torus/mlp-r", "cpu", seed=3, train_share=0.2).seed
    3
    """
    checks.choice("preset", preset, presets(name))
    common = _PRESETS[name.partition("/")[0]][preset]
    own = _OWN.get((name, preset), {})
    config = Config(**{"recipe": name, "preset": preset, **common, **_ROWS[name], **own})
    return config.with_settings(settings)


def expand(patterns: list[str]) -> list[str]:
    """The recipes that names and globs (``"torus/*"``) mean, in the order of the tables.

    >>> expand(["torus/*l1"])
    ['torus/mlp-l1', 'torus/mlp-r-l1']
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(RECIPES, pattern)
        chosen.update(found or [checks.choice("recipe", pattern, RECIPES)])
    return [name for name in RECIPES if name in chosen]


def changes(config: Config) -> Settings:
    """The settings in which a config differs from its recipe and preset, apart from the seed.

    >>> changes(recipe("torus/mlp", "cpu", train_share=0.2, seed=1))
    {'train_share': 0.2}
    """
    standard = recipe(config.recipe, config.preset, seed=config.seed).to_dict()
    return {key: value for key, value in config.to_dict().items() if value != standard[key]}


def folder(config: Config, root: str | Path = "runs") -> Path:
    """Where a run of this config belongs: recipe, preset (and what was changed, as a hash), seed.

    >>> folder(recipe("torus/mlp-r", "cpu", seed=1)).as_posix()
    'runs/torus-mlp-r/cpu/seed1'
    """
    changed = changes(config)
    mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
    middle = f"{config.preset}-{mark}" if changed else config.preset
    return Path(root) / config.recipe.replace("/", "-") / middle / f"seed{config.seed}"
