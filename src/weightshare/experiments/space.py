"""What a sweep looks for: ranges and choices of settings, from words like ``alpha=1e-5..1e-2``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightshare import checks
from weightshare.experiments.config import KEYS, Config

if TYPE_CHECKING:
    import optuna

_WIDE = 10.0  # a range of numbers that spans this factor is searched on a logarithmic scale
_FIXED = ("recipe", "preset", "seed", "holdout", "device", "threads", "matmul")


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high``, both included; whole numbers where the setting is one."""

    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: optuna.Trial, key: str) -> Any:
        """A value of a trial."""
        if self.whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{' (log)' * self.log}"


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def suggest(self, trial: optuna.Trial, key: str) -> Any:
        """A value of a trial."""
        return trial.suggest_categorical(key, list(self.values))

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Space = dict[str, Range | Choice]


def space(over: Sequence[str], config: Config) -> Space:
    """The space that ``["alpha=1e-5..1e-2", "lr=0.05,0.1"]`` describes, around a config.

    ``low..high`` is a range, searched on a logarithmic scale where it spans a factor of ten or more; commas
    separate choices.

    >>> from weightshare.experiments.recipes import recipe
    >>> found = space(["alpha=1e-5..1e-2", "lr=0.05,0.1", "epochs=5..8"], recipe("torus/mlp-r", "cpu"))
    >>> print(*(f"{key}: {where}" for key, where in found.items()), sep="; ")
    alpha: 1e-05..0.01 (log); lr: 0.05, 0.1; epochs: 5..8
    """
    if not over:
        raise ValueError("--over needs settings to look for, as in --over alpha=1e-5..1e-2")
    found: Space = {}
    for words in over:
        key, equals, text = (part.strip() for part in words.partition("="))
        if not equals or not text:
            raise ValueError(f"--over needs key=low..high or key=value,value, got {words!r}")
        checks.choice("setting", key, KEYS)
        if key in _FIXED:
            raise ValueError(f"{key} is not a setting to sweep over; choose it for the whole sweep")
        if key in found:
            raise ValueError(f"--over names {key} twice; join its values with commas")
        found[key] = _range(key, text, config) if ".." in text else _choice(key, text, config)
    return found


def _range(key: str, text: str, config: Config) -> Range:
    kind = type(getattr(config, key))
    low_text, _, high_text = text.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        raise ValueError(f"{key}={text}: a range needs two numbers, as in {key}=1e-5..1e-2") from None
    if kind not in (int, float):
        raise ValueError(f"{key} has no range; give its values, as in {key}=a,b")
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"{key}={text}: a range goes from a number to a larger one")
    for end in (low, high):
        config.with_settings({key: int(end) if kind is int and end.is_integer() else end})
    return Range(low, high, low > 0 and high / low >= _WIDE, kind is int)


def _choice(key: str, text: str, config: Config) -> Choice:
    separator = ";" if isinstance(getattr(config, key), tuple) else ","
    parts = [part.strip() for part in text.split(separator)]
    values = tuple(_plain(getattr(config.with_settings({key: part}), key)) for part in parts)
    if len(set(values)) < len(values):
        raise ValueError(f"{key}={text}: a value is named twice")
    return Choice(values)


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def described(found: Mapping[str, Range | Choice]) -> dict[str, str]:
    """The space in words, for files and tables."""
    return {key: str(where) for key, where in found.items()}
