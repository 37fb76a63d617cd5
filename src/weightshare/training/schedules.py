"""Coefficients that change during training: functions from the step number to a number.

The step number counts the optimizer steps that sharing has followed, from 0. Every schedule is a small
frozen object, so that it prints, compares and pickles; any other callable from int to float will do too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weightshare.training import inputs

Schedule = Callable[[int], float]
Coefficient = float | Schedule


@dataclass(frozen=True)
class constant:
    """Always ``value``.

    >>> constant(1e-3)(500)
    0.001
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        inputs.number("value", self.value)

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class linear:
    """From ``start`` to ``end`` in a straight line over ``steps`` steps, then ``end``.

    >>> [linear(0.0, 1.0, steps=4)(t) for t in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        inputs.number("start", self.start)
        inputs.number("end", self.end)
        inputs.whole("steps", self.steps, least=1)

    def __call__(self, step: int) -> float:
        share = min(step / self.steps, 1.0)
        return self.start * (1.0 - share) + self.end * share


@dataclass(frozen=True)
class cosine:
    """From ``start`` to ``end`` along half a cosine over ``steps`` steps, then ``end``.

    >>> [round(cosine(1.0, 0.0, steps=4)(t), 3) for t in (0, 1, 2, 4, 9)]
    [1.0, 0.854, 0.5, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        inputs.number("start", self.start)
        inputs.number("end", self.end)
        inputs.whole("steps", self.steps, least=1)

    def __call__(self, step: int) -> float:
        share = (1.0 - math.cos(math.pi * min(step / self.steps, 1.0))) / 2.0
        return self.start * (1.0 - share) + self.end * share


@dataclass(frozen=True)
class warmup:
    """Rise to ``value`` over ``steps`` steps, the first of which gets ``value / steps``; then ``value``.

    >>> [warmup(4)(t) for t in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """

    steps: int
    value: float = 1.0

    def __post_init__(self) -> None:
        inputs.whole("steps", self.steps, least=1)
        inputs.number("value", self.value)

    def __call__(self, step: int) -> float:
        return self.value * min((step + 1) / self.steps, 1.0)


@dataclass(frozen=True)
class step:
    """Piecewise constant: ``value`` first, then the value of the last milestone that was reached.

    >>> schedule = step(0.0, {1000: 1e-4, 5000: 1e-3})
    >>> [schedule(t) for t in (0, 999, 1000, 6000)]
    [0.0, 0.0, 0.0001, 0.001]
    """

    value: float
    milestones: Mapping[int, float] = field(hash=False)

    def __post_init__(self) -> None:
        inputs.number("value", self.value)
        if not isinstance(self.milestones, Mapping):
            raise TypeError(f"milestones must map step numbers to values, got {self.milestones!r}")
        for at, value in self.milestones.items():
            inputs.whole("a key of milestones", at, least=0)
            inputs.number(f"milestones[{at}]", value)

    def __call__(self, step: int) -> float:
        reached = [at for at in self.milestones if at <= step]
        return self.milestones[max(reached)] if reached else self.value


def value_at(name: str, coefficient: Coefficient, step: int, *, upper: float = math.inf) -> float:
    """The coefficient's value at this step, checked to lie in [0, upper]."""
    value = coefficient(step) if callable(coefficient) else coefficient
    try:
        value = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"the schedule of {name} must give numbers, got {value!r} at step {step}") from None
    if not 0.0 <= value <= upper or math.isinf(value):
        allowed = "finite and >= 0" if math.isinf(upper) else f"in [0, {upper:g}]"
        raise ValueError(f"the schedule of {name} must give values {allowed}, got {value} at step {step}")
    return value
