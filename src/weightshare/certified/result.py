"""What the certified prox returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class ClusterTable:
    """The clusters in ascending order; ``ids`` is the cluster of every weight, in the original order."""

    starts: NDArray[np.int64]
    sums: NDArray[np.float64]
    means: NDArray[np.float64]
    values: NDArray[np.float64]
    ids: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """Number of clusters."""
        return int(self.starts.size)


@dataclass
class Info:
    """How a call was answered: for people, benchmarks and tests; never part of the result."""

    route: str
    unresolved: float = 0.0
    clusters: int | None = None
    rounds: int = 0
    buckets: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class ProxResult:
    """Output array, number of weights that the l1 part set to zero, clusters if asked for, and the
    account."""

    out: NDArray[Any]
    zeros: int
    info: Info
    clusters: ClusterTable | None = None
