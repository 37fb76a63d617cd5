"""The LUT route: bfloat16 and float16 vectors as counts of bit patterns; never sorts."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.certified.problem import Clock, Problem
from weightshare.certified.result import ClusterTable, Info, ProxResult
from weightshare.kernels.cpu import half, hull, rows
from weightshare.kernels.threads import run, split

PATTERNS = 1 << 16
FORMATS = ("bf16", "fp16")


def widen(bits: NDArray[np.uint16], form: str) -> NDArray[np.float32]:
    """float32 values of half-precision bit patterns (exact)."""
    if form == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: NDArray[np.float32], form: str) -> NDArray[np.uint16]:
    """Nearest half-precision bit patterns, ties to even."""
    if form == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


@functools.cache
def _order(form: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Patterns by ascending value with the two zeros adjacent, their values, and which are not finite."""
    with np.errstate(invalid="ignore"):
        values = widen(np.arange(PATTERNS, dtype=np.uint16), form).astype(np.float64)
    bad = ~np.isfinite(values)
    values[bad] = 0.0
    order = np.argsort(values, kind="stable")
    return order, values[order], bad


def solve(
    bits: NDArray[np.uint16], out: NDArray[np.uint16], problem: Problem, form: str, *, table: bool, ids: bool
) -> ProxResult:
    """Prox of a half-precision vector given and returned as bit patterns."""
    info = Info(route="lut", buckets=PATTERNS)
    clock = Clock(info)
    counts = count(bits, problem.threads)
    clock.lap("histogram")
    return look_up(counts, bits, out, problem, form, info, clock, table=table, ids=ids)


def count(bits: NDArray[np.uint16], threads: int) -> NDArray[np.int64]:
    """How often each pattern occurs."""
    slices = split(bits.size, threads)
    counts = np.zeros((len(slices), 2, PATTERNS), np.int64)
    run(
        [partial(half.count_patterns, bits[lo:hi], counts[k]) for k, (lo, hi) in enumerate(slices)],
        len(slices),
    )
    total: NDArray[np.int64] = counts[:, 0].sum(axis=0)
    return total


def look_up(
    counts: NDArray[np.int64],
    bits: NDArray[np.uint16],
    out: NDArray[np.uint16],
    problem: Problem,
    form: str,
    info: Info,
    clock: Clock,
    *,
    table: bool = False,
    ids: bool = False,
) -> ProxResult:
    """Pool the patterns that were counted in the whole vector, and look up those in ``bits``."""
    order, values, bad = _order(form)
    if counts[bad].any():
        raise ValueError("w must be finite: it contains nan or inf")
    clusters, cluster_of, zeros = _pool(counts[order], values, problem)
    slices = split(bits.size, problem.threads)
    of_pattern = np.zeros(PATTERNS, np.int64)
    of_pattern[order] = cluster_of
    info.clusters = clusters.count
    clock.lap("hull")
    if ids:
        clusters.ids = np.empty(bits.size, np.int64)
        _gather(bits, of_pattern, clusters.ids, slices)
    _gather(bits, narrow(clusters.values.astype(np.float32), form)[of_pattern], out, slices)
    clusters.values = widen(narrow(clusters.values.astype(np.float32), form), form).astype(np.float64)
    clock.lap("write")
    return ProxResult(out, zeros, info, clusters if table else None)


def _pool(
    counts: NDArray[np.int64], values: NDArray[np.float64], problem: Problem
) -> tuple[ClusterTable, NDArray[np.int64], int]:
    """Clusters of the counted values, the cluster of each value, and the number of zeroed weights."""
    # A count below 2^42 times an 11-bit mantissa is an exact float64.
    first, n = np.empty(counts.size, np.int64), np.empty(counts.size, np.int64)
    high, low = np.empty(counts.size), np.empty(counts.size)
    counts = _join_zeros(counts, values)
    k = hull.pool(counts, counts * values, np.zeros(counts.size), problem.c, first, n, high, low)
    first, n, high, low = first[:k], n[:k], high[:k], low[:k]
    starts = np.concatenate([[0], np.cumsum(n)])
    result = np.empty(k)
    zeros = rows.values_single(starts, high, low, k, problem.c, problem.beta, problem.scale, result)
    at = np.zeros(counts.size, np.int64)
    at[first[1:]] = 1
    cluster_of = np.cumsum(at)
    zero = np.flatnonzero(values == 0.0)
    cluster_of[zero] = cluster_of[zero[0]]
    return ClusterTable(starts[:-1], high + low, (high + low) / n, result), cluster_of, zeros


def _join_zeros(counts: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count all zeros under the first of them: -0.0 equals 0.0 (and patterns that are not finite count
    nothing)."""
    zero = np.flatnonzero(values == 0.0)
    counts = counts.copy()
    counts[zero[0]] = counts[zero].sum()
    counts[zero[1:]] = 0
    return counts


def _gather(
    bits: NDArray[np.uint16], table: NDArray[Any], out: NDArray[Any], slices: list[tuple[int, int]]
) -> None:
    """out = table[bits], in slices."""
    run([partial(half.gather, bits[lo:hi], table, out[lo:hi]) for lo, hi in slices], len(slices))
