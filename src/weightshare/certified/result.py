"""What the certified prox returns."""

from __future__ import annotations

from collections.abc import Sequence
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
    """How a call was answered: for people, benchmarks and tests; never part of the result.

    ``unresolved`` is the share of weights that had to be sorted. ``clusters`` counts those that formed,
    before any is set to zero; None where they were not counted (with alpha = 0 nothing collides, and equal
    weights are not looked for). ``buckets`` is how many held weights, ``rounds`` how often some were
    sorted.
    """

    route: str
    unresolved: float = 0.0
    clusters: int | None = None
    rounds: int = 0
    buckets: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, infos: Sequence[Info]) -> Info:
        """One account of several vectors of one length.

        >>> Info.of_rows([Info("small", clusters=2), Info("certified", clusters=3)]).clusters
        5
        """
        counted = [info.clusters for info in infos if info.clusters is not None]
        seconds: dict[str, float] = {}
        for info in infos:
            for phase, took in info.seconds.items():
                seconds[phase] = seconds.get(phase, 0.0) + took
        return cls(
            "rows",
            unresolved=sum(info.unresolved for info in infos) / max(len(infos), 1),
            clusters=sum(counted) if len(counted) == len(infos) else None,
            rounds=max((info.rounds for info in infos), default=0),
            buckets=sum(info.buckets for info in infos),
            seconds=seconds,
        )


@dataclass
class ProxResult:
    """Output array, number of weights that the l1 part set to zero, clusters if asked for, and the
    account."""

    out: NDArray[Any]
    zeros: int
    info: Info
    clusters: ClusterTable | None = None
