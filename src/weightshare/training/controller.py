"""A controller that finds the coefficient at which a layer meets its target.

The plant: a larger alpha ties more weights, a larger beta zeroes more, but with a delay, for ties need
many steps to form and to break. The control: every ``interval`` steps the quantity q (bits, distinct
values, share of nonzero weights) is measured, and

    log(coefficient) += gain_n * clip(log2(q / edge), -RELAX, 1)

where ``edge`` is the end of the band [(1 - tolerance) target, target] that q lies beyond, and nothing moves
while q is inside (hysteresis) or on its way (q came closer to the band since the last measurement faster
than :data:`PROGRESS`). The gain is Kesten's: ``gain_n = GAIN / (1 + n)``, with n the number of times that q
has changed sides.

Why it cannot oscillate away: between two changes of side the coefficient moves one way only. If the layer
answers a change of the coefficient within L measurements, then after the coefficient has passed the right
value it goes on for at most L moves of at most gain_n each, so the n-th swing overshoots by no more than
``L * GAIN / (1 + n)`` in the logarithm: the swings shrink to zero whatever the delay L. Since the gains sum
to infinity, every coefficient stays within reach, and a layer whose right value drifts is followed. And the
logarithm never leaves ``log(start) +- LIMIT``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weightshare.distributed import value_counts
from weightshare.metrics import Summary
from weightshare.training import inputs

GAIN = 0.25
"""Largest move of log(coefficient) at one measurement."""
RELAX = 0.5
"""Largest move down, as a share of the largest up: a noisy layer shall meet its target most of the time."""
PROGRESS = 0.02
"""Fall of |log2(q / edge)| from one measurement to the next, as a share of it, that counts as on its way."""
LIMIT = math.log(1e8)
"""How far log(coefficient) may go from its start, in both directions."""
INTERVAL = 10
"""Optimizer steps between measurements."""

COEFFICIENT = {"bits": "alpha", "distinct": "alpha", "zeros": "beta"}


@dataclass(frozen=True)
class Goal:
    """A target for a quantity: at most so many bits or distinct values, at least so many zeros."""

    quantity: str
    target: float
    tolerance: float

    def __post_init__(self) -> None:
        inputs.number(f"target_{self.quantity}", self.target)
        inputs.number("tolerance", self.tolerance)
        least, most = {"bits": (0.0, 64.0), "distinct": (1.0, 2.0**63), "zeros": (0.0, 1.0)}[self.quantity]
        inside = least <= self.target < most and (self.quantity == "distinct" or self.target > least)
        if not inside:
            interval = f"[{least:g}, 2^63)" if self.quantity == "distinct" else f"({least:g}, {most:g})"
            raise ValueError(f"target_{self.quantity} must be in {interval}, got {self.target:g}")
        if not 0.0 < self.tolerance < 1.0:
            raise ValueError(f"tolerance must be in (0, 1), got {self.tolerance}")

    @property
    def coefficient(self) -> str:
        """The coefficient that moves the quantity."""
        return COEFFICIENT[self.quantity]

    @property
    def ceiling(self) -> float:
        """The target for q, which must not be above it: for zeros, the share that is not zero."""
        return 1.0 - self.target if self.quantity == "zeros" else self.target

    def measure(self, tensors: Sequence[Tensor]) -> float:
        """The quantity q of these weights, all counted together."""
        found = Summary.of(*value_counts([t.detach() for t in tensors]))
        if self.quantity == "zeros":
            return 1.0 - found.sparsity
        return found.entropy if self.quantity == "bits" else float(found.distinct)

    def error(self, q: float) -> float:
        """log2 of q over the near end of the band; 0 inside."""
        if q > self.ceiling:
            return math.log2(q / self.ceiling)
        floor = self.ceiling * (1.0 - self.tolerance)
        return 0.0 if q >= floor else max(math.log2(max(q, 1e-300) / floor), -1e3)


@dataclass
class Controller:
    """Adapts one coefficient, whose logarithm it shifts; all of its state is plain numbers.

    >>> control = Controller(Goal("distinct", 16, 0.1))
    >>> for distinct in (1000, 1000, 500, 16): control.update(distinct)
    >>> control.met, round(control.factor, 3), control.measurements
    (True, 1.649, 4)
    """

    goal: Goal
    shift: float = 0.0
    changes: int = 0
    side: int = 0
    last: float = 0.0
    measured: float | None = None
    measurements: int = 0
    moves: int = 0

    @property
    def factor(self) -> float:
        """What the coefficient is multiplied by."""
        return math.exp(self.shift)

    @property
    def met(self) -> bool:
        """Whether the last measurement met the target."""
        return self.measured is not None and self.measured <= self.goal.ceiling

    def update(self, q: float) -> None:
        """Take a measurement into account."""
        error = self.goal.error(q)
        side = (error > 0) - (error < 0)
        if side and self.side and side != self.side:
            self.changes += 1
        coming = side == self.side and abs(error) < (1.0 - PROGRESS) * abs(self.last)
        if side and not coming:
            move = GAIN / (1 + self.changes) * min(max(error, -RELAX), 1.0)
            self.shift = min(max(self.shift + move, -LIMIT), LIMIT)
            self.moves += 1
        self.side = side or self.side
        self.last, self.measured = error, q
        self.measurements += 1

    def state_dict(self) -> dict[str, float | None]:
        """Everything but the goal, as plain numbers."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for name in _STATE:
            setattr(self, name, state[name])


def check_state(name: str, state: Any) -> None:
    """Raise unless ``state`` is what :meth:`Controller.state_dict` gives for the tensor ``name``."""
    if not isinstance(state, dict) or set(state) != set(_STATE):
        raise ValueError(
            f"the controller of {name!r} needs the numbers {', '.join(_STATE)}, got {state!r:.200}"
        )
    for key, value in state.items():
        if not (key == "measured" and value is None):
            inputs.number(f"{key!r} of the controller of {name!r}", value)


_STATE = ("shift", "changes", "side", "last", "measured", "measurements", "moves")
