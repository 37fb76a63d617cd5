"""float64 vectors: partition by splitters, sort in cache, pool in tiles with double-double sums, replay."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import small
from weightshare.certified.problem import Clock, Problem
from weightshare.certified.result import ClusterTable, Info, ProxResult
from weightshare.kernels.cpu import splitters, tiles
from weightshare.kernels.threads import run, split

SMALL = 1 << 15
TILE = 1 << 15
BUCKETS = 1 << 12
PER_BUCKET = 1 << 13  # aimed at; fewer buckets are used for shorter vectors
OVERSAMPLING = 8


def solve(
    w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem, *, route: str, table: bool, ids: bool
) -> ProxResult:
    """Prox of one float64 vector."""
    scaled, problem, power = safe_range(w, problem)
    if route == "small" or (route == "auto" and problem.d <= SMALL):
        result = small.solve_double(scaled, out, problem, table=table, ids=ids)
    else:
        result = _solve_long(scaled, out, problem, table=table, ids=ids)
    if power:
        np.ldexp(out, -power, out=out)
        if result.clusters is not None:
            for part in (result.clusters.sums, result.clusters.means, result.clusters.values):
                np.ldexp(part, -power, out=part)
    return result


def solve_rows(w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem) -> NDArray[np.int64]:
    """Every row of a float64 matrix on its own; returns the numbers of zeros and of clusters per row."""
    found = np.zeros((w.shape[0], 2), np.int64)
    w, problem, power = safe_range(w, problem)

    def rows(lo: int, hi: int) -> None:
        for r in range(lo, hi):
            result = small.solve_double(w[r], out[r], problem, table=False, ids=False)
            found[r] = result.zeros, result.info.clusters or 0

    run([partial(rows, lo, hi) for lo, hi in split(w.shape[0], 4 * problem.threads)], problem.threads)
    if power:
        np.ldexp(out, -power, out=out)
    return found


def safe_range(w: NDArray[np.float64], problem: Problem) -> tuple[NDArray[np.float64], Problem, int]:
    """Refuse nan and inf; scale by a power of two if sums could overflow or products of tiny weights vanish.

    A c beyond twice the largest weight merges everything, as does twice the largest weight.
    """
    low, high = float(w.min()), float(w.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("w must be finite: it contains nan or inf")
    most = max(-low, high)
    problem = replace(problem, c=min(problem.c, 2.0 * most if most < 1e307 else most))
    if most > 0.0:  # a beta beyond the largest weight zeroes everything, whatever it is
        problem = replace(problem, beta=min(problem.beta, 2.0 * most))
    exponent = math.frexp(most)[1] if most > 0.0 else 0
    if -400 < exponent < 600:
        return w, problem, 0
    power = -exponent
    scaled = replace(problem, c=math.ldexp(problem.c, power), beta=math.ldexp(problem.beta, power))
    return np.ldexp(w, power), scaled, power


def _splitters(w: NDArray[np.float64]) -> NDArray[np.float64]:
    """2^k - 1 sorted splitters from a sample; a value that is often drawn gets a bucket of its own."""
    buckets = 2
    while buckets < BUCKETS and buckets * PER_BUCKET < w.size:
        buckets *= 2
    sample = np.sort(w[:: max(1, w.size // (buckets * OVERSAMPLING // 2))])
    spaced = sample[np.linspace(0, sample.size - 1, buckets // 2).astype(np.int64)]
    often = np.unique(spaced[1:][spaced[1:] == spaced[:-1]])
    chosen = np.unique(np.concatenate([spaced, np.nextafter(often, np.inf)]))
    return np.concatenate([chosen, np.full(buckets - 1 - chosen.size, np.inf)])


def _solve_long(
    w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem, *, table: bool, ids: bool
) -> ProxResult:
    """Partition, sort bucket by bucket, pool by rank, replay the partition."""
    info = Info("partition", unresolved=1.0)
    clock = Clock(info)
    d, threads = problem.d, problem.threads
    slices = split(d, threads)
    cuts = _splitters(w)
    counts = np.zeros((len(slices), cuts.size + 1), np.int64)
    bucket = np.empty(d, np.uint16)
    run([partial(splitters.classify, w[lo:hi], cuts, bucket[lo:hi], counts[k])
         for k, (lo, hi) in enumerate(slices)], threads)  # fmt: skip
    edges = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    cursors = edges[:-1] + np.cumsum(counts, axis=0) - counts
    clock.lap("histogram")
    x, place = np.empty(d), np.empty(d, np.uint32)
    start = cursors.copy()
    run([partial(splitters.scatter_values, w[lo:hi], bucket[lo:hi], start[k], x)
         for k, (lo, hi) in enumerate(slices)], threads)  # fmt: skip
    clock.lap("scatter")
    _sort_buckets(x, place, edges, threads)
    clock.lap("sort")
    heads = _pool(x, problem)
    clock.lap("pool")
    info.buckets = int(np.count_nonzero(np.diff(edges)))
    info.clusters = int(np.count_nonzero(heads))
    clusters = _table(x, heads, problem) if table else None
    if clusters is not None and ids:
        clusters.ids = _ids(heads, place, edges, bucket, cursors, slices)
    results = np.empty(d)
    zeros: list[int] = []

    def write(lo: int, hi: int) -> None:
        scalars = (problem.c, problem.beta, problem.scale)
        zeros.append(tiles.write_clusters(x, heads, lo, hi, edges, place, *scalars, results))

    run([partial(write, lo, min(lo + TILE, d)) for lo in range(0, d, TILE)], threads)
    clock.lap("values")
    run([partial(splitters.replay_values, bucket[lo:hi], cursors[k], results, out[lo:hi])
         for k, (lo, hi) in enumerate(slices)], threads)  # fmt: skip
    clock.lap("write")
    return ProxResult(out, sum(zeros), info, clusters)


def _sort_buckets(
    x: NDArray[np.float64], place: NDArray[np.uint32], edges: NDArray[np.int64], threads: int
) -> None:
    """Sort each bucket of x in place and note each weight's place of arrival in it."""

    def sort(begin: int, end: int) -> None:
        for lo, hi in zip(bounds[begin:end], bounds[begin + 1 : end + 1]):
            part = x[lo:hi]
            if hi - lo > 4 * PER_BUCKET and part.min() == part.max():
                place[lo:hi] = np.arange(hi - lo)
            elif hi > lo:
                order = np.argsort(part)
                place[lo:hi] = order
                x[lo:hi] = part[order]

    bounds = edges.tolist()
    run([partial(sort, lo, min(lo + 8, edges.size - 1)) for lo in range(0, edges.size - 1, 8)], threads)


def _pool(x: NDArray[np.float64], problem: Problem) -> NDArray[np.bool_]:
    """First ranks of the clusters."""
    heads = np.empty(x.size, np.bool_)

    def tile(begin: int, end: int) -> None:
        starts, sh, sl = np.empty(TILE + 1, np.int64), np.empty(TILE), np.empty(TILE)
        for lo in range(begin, end, TILE):
            hi = min(lo + TILE, x.size)
            tiles.pool_tile(x[lo:hi], problem.c, starts, sh, sl, heads[lo:hi])

    run([partial(tile, lo, min(lo + 8 * TILE, x.size)) for lo in range(0, x.size, 8 * TILE)], problem.threads)
    tiles.join_tiles(x, heads, TILE, problem.c, np.empty((x.size // TILE + 2, 4)))
    return heads


def _table(x: NDArray[np.float64], heads: NDArray[np.bool_], problem: Problem) -> ClusterTable:
    """All clusters, in ascending order."""
    starts = np.flatnonzero(heads)
    sums, means, values = np.empty(starts.size), np.empty(starts.size), np.empty(starts.size)
    tiles.list_tiles(x, starts, problem.c, problem.beta, problem.scale, sums, means, values)
    return ClusterTable(starts, sums, means, values)


def _ids(
    heads: NDArray[np.bool_],
    place: NDArray[np.uint32],
    edges: NDArray[np.int64],
    bucket: NDArray[np.uint16],
    cursors: NDArray[np.int64],
    slices: list[tuple[int, int]],
) -> NDArray[np.int64]:
    """Cluster of every weight, in the original order."""
    results = np.empty(heads.size, np.int64)
    results[np.repeat(edges[:-1], np.diff(edges)) + place] = np.cumsum(heads) - 1
    out = np.empty(heads.size, np.int64)
    run([partial(splitters.replay_values, bucket[lo:hi], cursors[k].copy(), results, out[lo:hi])
         for k, (lo, hi) in enumerate(slices)], len(slices))  # fmt: skip
    return out
