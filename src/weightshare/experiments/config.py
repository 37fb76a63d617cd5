"""Everything it takes to make a run again, as one flat, frozen record; it is read from JSON and TOML."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightshare import checks
from weightshare.experiments.files import read_json

EXPERIMENTS = {
    "torus": ("mnist", "fashion-mnist", "digits"),
    "digits": ("digits",),
    "cifar10": ("cifar10", "digits"),
}
"""The datasets that each experiment can be run on; the first part of a recipe's name is its experiment."""

CHOICES = {
    "dataset": ("mnist", "fashion-mnist", "cifar10", "digits"),
    "variant": ("plain", "no-locality", "no-symmetry"),
    "model": ("cnn", "mlp"),
    "schedule": ("cosine", "constant"),
    "matmul": ("highest", "high", "medium"),
    "method": ("none", "prox", "l1", "beta-lasso", "subgradient"),
    "coupling": checks.COUPLINGS,
}


@dataclass(frozen=True)
class Config:
    """One run. The recipe and the preset say where the settings come from; the other keys are the settings.

    ``layers`` are the layers that the method regularises, counted from 1, each on its weight and on its bias,
    each of them one vector; with method ``"none"`` they are those that the report counts. ``alpha_ratio`` is
    alpha of the second layer, as a multiple of ``alpha``. For ``"beta-lasso"``, ``beta`` is its lambda and
    its threshold is ``lambda / (1 - rho)``. ``width`` is the number of channels of the (equivalent)
    convolution. ``holdout`` is the share of the training set that is kept for validation; a run with a
    holdout never looks at the test set. ``heal_epochs`` more epochs follow with the clusters frozen, from
    ``heal_lr`` on. ``threads`` 0 leaves PyTorch's number. ``matmul`` is PyTorch's
    ``set_float32_matmul_precision``: ``"medium"`` lets it take the fastest kernels for products of float32
    matrices. On processors with AVX-512 they are as exact and up to twice as fast; on those that multiply
    matrices of bfloat16 (AMX), factors are rounded to it. Sums, gradients and weights stay float32.

    >>> config = Config(recipe="torus/mlp-r", method="prox", alpha=1e-3, seed=2)
    >>> config.with_settings(["lr=0.05", "layers=1"]).lr
    0.05
    >>> config.with_settings(["alhpa=1"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: unknown setting 'alhpa': choose one of ... did you mean 'alpha'?
    """

    recipe: str
    preset: str = "paper"
    seed: int = 0
    dataset: str = "mnist"
    variant: str = "plain"
    train_share: float = 1.0
    holdout: float = 0.0
    model: str = "mlp"
    width: int = 32
    dropout: float = 0.0
    augment: bool = False
    epochs: int = 200
    batch: int = 512
    lr: float = 0.1
    momentum: float = 0.0
    schedule: str = "cosine"
    method: str = "none"
    alpha: float = 0.0
    alpha_ratio: float = 1.0
    beta: float = 0.0
    rho: float = 0.0
    coupling: str = "scaled"
    layers: tuple[int, ...] = (1,)
    algorithm: str = "auto"
    heal_epochs: int = 0
    heal_lr: float = 0.01
    evaluate_every: int = 1
    threads: int = 0
    matmul: str = "highest"
    device: str = "auto"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _typed(field.name, getattr(self, field.name), field.type)
            object.__setattr__(self, field.name, value)
        for key, allowed in CHOICES.items():
            checks.choice(key, getattr(self, key), allowed)
        self._check_ranges()
        experiment = checks.choice("experiment", self.experiment, EXPERIMENTS)
        if self.dataset not in EXPERIMENTS[experiment]:
            raise ValueError(
                f"{experiment} is not run on dataset {self.dataset!r}: "
                f"choose one of {', '.join(map(repr, EXPERIMENTS[experiment]))}"
            )
        if experiment == "cifar10" and self.variant != "plain":
            raise ValueError(f"variant={self.variant!r} is for the torus; cifar10 has 'plain' only")

    def _check_ranges(self) -> None:
        for key, least in _LEAST.items():
            _in_range(key, getattr(self, key), least, math.inf)
        for key, (low, high) in _SHARES.items():
            _in_range(key, getattr(self, key), low, high)
        if self.train_share == 0.0:
            raise ValueError("train_share must be above 0, got 0")
        if not self.layers or not set(self.layers) <= {1, 2, 3} or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"layers must be some of 1, 2 and 3, each once, got {self.layers}")
        if self.method == "beta-lasso" and self.rho == 1.0:
            raise ValueError("beta-lasso's threshold is beta / (1 - rho): rho must be below 1, got 1")

    @property
    def experiment(self) -> str:
        """The first part of the recipe's name."""
        return self.recipe.partition("/")[0]

    def strength(self, layer: int) -> float:
        """``alpha`` of a layer."""
        return self.alpha * (self.alpha_ratio if layer == 2 else 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by key, as in the files of a run."""
        found = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The inverse of :meth:`to_dict`."""
        for key in values:
            checks.choice("setting", key, KEYS)
        if "recipe" not in values:
            raise ValueError('a config needs its recipe, for example recipe = "torus/mlp-r"')
        return cls(**values)

    def with_settings(self, settings: Sequence[str] | Mapping[str, Any]) -> Config:
        """A copy with some keys changed: ``["key=value", ...]`` as on the command line, or a mapping."""
        if not isinstance(settings, Mapping):
            settings = dict(map(_split, settings))
        for key in settings:
            checks.choice("setting", key, KEYS)
        return dataclasses.replace(self, **{key: _parse(key, value) for key, value in settings.items()})

    def to_toml(self) -> str:
        """A TOML file; ``weightshare train --config FILE`` runs it."""
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.to_dict().items())

    @classmethod
    def from_file(cls, path: str | Path) -> list[Config]:
        """From TOML or JSON: a config of its own, the config.json or summary.json of a run, or a file of
        results/, with those of all its runs.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no file {path}; give the config.json of a run, or a TOML file")
        values = _read_toml(path) if path.suffix == ".toml" else read_json(path)
        many = values.get("runs") if isinstance(values, dict) else None
        try:
            return [cls.from_dict(_settings(one)) for one in (many if isinstance(many, list) else [values])]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None


KEYS = tuple(field.name for field in dataclasses.fields(Config))
_TYPES: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(Config)}

_LEAST = {
    **dict.fromkeys(("seed", "momentum", "alpha", "alpha_ratio", "beta", "heal_epochs", "threads"), 0),
    **dict.fromkeys(("lr", "heal_lr"), 0),
    **dict.fromkeys(("width", "epochs", "evaluate_every"), 1),
    "batch": 2,  # batch norm needs two
}
_SHARES = {
    "train_share": (0.0, 1.0),
    "holdout": (0.0, 0.9),
    "dropout": (0.0, 0.99),
    "momentum": (0.0, 0.9999),
    "rho": (0.0, 1.0),
}


def _in_range(key: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high and math.isfinite(value)):
        allowed = f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise ValueError(f"{key} must be {allowed}, got {value!r}")


def _typed(key: str, value: Any, kind: Any) -> Any:
    """The value as the type of its key, where nothing is lost; otherwise an error."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "int" and (whole or (isinstance(value, float) and value.is_integer())):
        return int(value)
    if kind == "float" and (whole or isinstance(value, float)):
        return float(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "tuple[int, ...]" and isinstance(value, (list, tuple)):
        return tuple(_typed(key, item, "int") for item in value)
    raise TypeError(f"{key} must be {_WORDS[str(kind)]}, got {value!r}")


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "tuple[int, ...]": "whole numbers, as in 1,2",
}


def _settings(values: Any) -> Mapping[str, Any]:
    """The settings themselves, or under the key ``config`` of what a run has left."""
    if isinstance(values, dict) and isinstance(values.get("config"), dict):
        values = values["config"]
    if not isinstance(values, dict):
        raise ValueError(f"settings by their keys are needed, got {type(values).__name__}")
    return values


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise ValueError(f"--set needs key=value, got {setting!r}; `weightshare recipes` shows the keys")
    return key.strip(), value.strip()


def _parse(key: str, value: Any) -> Any:
    """A setting from its text; values that are no text are left to the type check."""
    kind = _TYPES[key]
    if not isinstance(value, str) or kind == "str":
        return value
    try:
        if kind == "tuple[int, ...]":
            return tuple(int(part) for part in value.strip("()[] ,").split(","))
        if kind == "bool":
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                value.lower()
            ]
        return float(value)  # _typed makes it whole where it must be
    except (ValueError, KeyError):
        raise ValueError(f"{key} must be {_WORDS[kind]}, got {value!r}") from None


def _read_toml(path: Path) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
