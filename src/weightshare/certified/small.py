"""Short vectors and batches of rows: sort and pool, nothing to certify."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.certified.problem import Clock, Problem
from weightshare.certified.result import ClusterTable, Info, ProxResult
from weightshare.kernels.cpu import rows
from weightshare.kernels.threads import run

BLOCK = 1 << 16  # weights of a block of rows: its words stay in the L2 cache
LEAST_KEY, MOST_KEY = 0x007FFFFF, 0xFF800000  # of -inf and inf


def solve_single(
    w: NDArray[np.float32], out: NDArray[np.float32], problem: Problem, *, table: bool, ids: bool
) -> ProxResult:
    """One float32 vector."""
    words = np.empty((1, w.size), np.uint64)
    rows.row_words(w.view(np.uint32).reshape(1, -1), words)
    words.sort(axis=1)
    _refuse_nonfinite(words)
    x, order = np.empty(w.size), np.empty(w.size, np.int64)
    rows.unpack(words[0], x, order)
    return _finish(x, order, out, problem, rows.values_single, table, ids)


def solve_double(
    w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem, *, table: bool, ids: bool
) -> ProxResult:
    """One float64 vector (finite, scaled to a safe range by the caller)."""
    order = np.argsort(w)
    return _finish(w[order], order, out, problem, rows.values_double, table, ids)


def _finish(
    x: NDArray[np.float64],
    order: NDArray[np.int64],
    out: NDArray[Any],
    problem: Problem,
    values_of: Any,
    table: bool,
    ids: bool,
) -> ProxResult:
    """Pool the sorted vector, write the result, list the clusters."""
    info = Info(route="small", unresolved=1.0)
    clock = Clock(info)
    d = x.size
    starts, sh, sl = np.empty(d + 1, np.int64), np.empty(d), np.empty(d)
    k = rows.pool_sorted(x, problem.c, starts, sh, sl)
    values = np.empty(k)
    zeros = values_of(starts, sh, sl, k, problem.c, problem.beta, problem.scale, values)
    rows.place_values(starts, k, order, values, out)
    info.clusters = k
    clusters = None
    if table:
        sums = sh[:k] + sl[:k]
        clusters = ClusterTable(starts[:k].copy(), sums, sums / np.diff(starts[: k + 1]), values)
        if ids:
            clusters.ids = np.empty(d, np.int64)
            clusters.ids[order] = np.repeat(np.arange(k), np.diff(starts[: k + 1]))
    clock.lap("sort and pool")
    return ProxResult(out, zeros, info, clusters)


def solve_rows_single(
    w: NDArray[np.float32], out: NDArray[np.float32], problem: Problem
) -> NDArray[np.int64]:
    """Every row of a float32 matrix on its own; returns the numbers of zeros and of clusters per row."""
    found = np.zeros((w.shape[0], 2), np.int64)
    bits = w.view(np.uint32)
    lots = _blocks(*w.shape)

    def check_and_sort(lo: int, hi: int) -> NDArray[np.uint64]:
        words = np.empty((hi - lo, w.shape[1]), np.uint64)
        rows.row_words(bits[lo:hi], words)
        words.sort(axis=1)
        return words

    def block(lo: int, hi: int) -> None:
        words = check_and_sort(lo, hi)
        rows.rows_single(words, problem.c, problem.beta, problem.scale, out[lo:hi], found[lo:hi])

    run([partial(block, lo, hi) for lo, hi in lots], problem.threads)
    return found


def solve_rows_with_clusters(
    w: NDArray[Any], problem: Problem
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int8]]:
    """Every row of a finite matrix: value (rounded to its dtype), cluster and gate of every weight."""
    values = np.empty(w.shape)
    ids, gate = np.empty(w.shape, np.int64), np.empty(w.shape, np.int8)
    single = w.dtype == np.float32

    def block(lo: int, hi: int) -> None:
        order = np.argsort(w[lo:hi], axis=1)
        x = np.take_along_axis(w[lo:hi], order, axis=1).astype(np.float64)
        scalars = (problem.c, problem.beta, problem.scale, single)
        rows.rows_with_clusters(x, order, *scalars, values[lo:hi], ids[lo:hi], gate[lo:hi])

    run([partial(block, lo, hi) for lo, hi in _blocks(*w.shape)], problem.threads)
    return values, ids, gate


def _blocks(count: int, d: int) -> list[tuple[int, int]]:
    """Rows in lots of about BLOCK weights."""
    per = max(1, BLOCK // max(d, 1))
    return [(lo, min(lo + per, count)) for lo in range(0, count, per)]


def _refuse_nonfinite(words: NDArray[np.uint64]) -> None:
    """Sorted words of rows: nan and inf have the outermost keys."""
    if (words[:, 0] >> 32).min() <= LEAST_KEY or (words[:, -1] >> 32).max() >= MOST_KEY:
        raise ValueError("w must be finite: it contains nan or inf")
