"""bf16 and fp16 across ranks: counts of bit patterns are added up, and everything else is local."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import half
from weightshare.certified.problem import Clock, Problem
from weightshare.distributed.wire import DistributedInfo, Wire

BLOCK = 256  # patterns with one upper byte: sign and seven bits of the exponent of bf16


def solve(
    bits: NDArray[np.uint16],
    out: NDArray[np.uint16],
    problem: Problem,
    form: str,
    wire: Wire,
    info: DistributedInfo,
) -> None:
    """Write the prox of the whole vector at this rank's weights.

    First the ranks find out which upper bytes occur, then which patterns with these; only the counts of
    patterns that occur are exchanged.
    """
    info.route, info.buckets = "lut", half.PATTERNS
    clock = Clock(info)
    counts = half.count(bits, problem.threads).reshape(-1, BLOCK)
    blocks = wire.any(counts.sum(axis=1) > 0, "the list of upper bytes")
    rows = counts[blocks]
    occurs = wire.any(rows > 0, "the list of bit patterns")
    small = problem.d < 1 << 31  # no count can exceed 32 bits then
    rows[occurs] = wire.total(rows[occurs].astype(np.int32 if small else np.int64), "the counts of patterns")
    counts[blocks] = rows
    clock.lap("histogram")
    result = half.look_up(counts.reshape(-1), bits, out, problem, form, info, clock)
    info.clusters = result.info.clusters
