"""The scalars of one call, prepared for the kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass

from weightshare.certified.result import Info


@dataclass(frozen=True)
class Problem:
    """One vector's prox: d, c = alpha / (d - 1), beta and the scale of the displacement (Algorithm 2)."""

    d: int
    c: float
    beta: float
    scale: float
    threads: int


class Clock:
    """Charges wall time to named phases of an ``Info``."""

    def __init__(self, info: Info) -> None:
        self._seconds = info.seconds
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now
