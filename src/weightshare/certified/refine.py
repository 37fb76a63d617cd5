"""Sort and pool the buckets that the certificate left, a cache full at a time, on all threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightshare.certified.plan import Plan
from weightshare.certified.problem import Clock, Problem
from weightshare.kernels.cpu import buckets, merge, stream
from weightshare.kernels.threads import run

BATCH = 1 << 20  # weights per task


@dataclass
class Refined:
    """The unresolved weights bucket by bucket: sorted words, results in order of arrival, what merging needs."""

    left: int
    offset: NDArray[np.int64]
    place: NDArray[np.int64]
    wide: NDArray[np.bool_]
    words32: NDArray[np.uint32]
    words64: NDArray[np.uint64]
    ends: NDArray[np.int64]
    results: NDArray[np.float32]
    cursors: NDArray[np.int64]
    zeros: int


def refine(
    bits: NDArray[np.uint32],
    plan: Plan,
    counts: NDArray[np.int64],
    by_slice: NDArray[np.int64],
    unresolved: NDArray[np.bool_],
    slices: list[tuple[int, int]],
    problem: Problem,
    clock: Clock,
) -> Refined:
    """Gather the weights of unresolved buckets, sort and pool each bucket."""
    size = counts.size
    todo = np.flatnonzero(unresolved)
    held = np.where(unresolved, counts, 0)
    offset = np.cumsum(held) - held
    left = int(held.sum())
    place_bits = np.zeros(size, np.int64)
    place_bits[todo] = np.ceil(np.log2(counts[todo])).astype(np.int64)
    wide = unresolved & (place_bits + plan.widths > 31)
    held_wide = np.where(wide, counts, 0)
    place = np.where(wide, np.cumsum(held_wide) - held_wide, offset)
    refined = Refined(
        left=left, offset=offset, place=place, wide=wide,
        words32=np.empty(left, np.uint32), words64=np.empty(int(held_wide.sum()), np.uint64),
        ends=np.zeros((size, 4), np.int64), results=np.empty(left, np.float32),
        cursors=_cursors(by_slice, offset, unresolved), zeros=0,
    )  # fmt: skip
    if not left:
        return refined
    start = refined.cursors.copy()

    def scatter(part: int, lo: int, hi: int) -> None:
        stream.scatter(bits[lo:hi], plan.cells, plan.slots, start[part], refined.words32)

    run([partial(scatter, part, lo, hi) for part, (lo, hi) in enumerate(slices)], len(slices))
    clock.lap("scatter")
    _sort_and_pool(plan, counts, todo, refined, problem)
    clock.lap("sort and pool")
    return refined


def _cursors(
    by_slice: NDArray[np.int64], offset: NDArray[np.int64], unresolved: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Where each slice's weights of each bucket begin; -1 for buckets that need no look inside."""
    before = np.cumsum(by_slice, axis=0) - by_slice
    return np.where(unresolved, offset + before, -1)


def _sort_and_pool(
    plan: Plan, counts: NDArray[np.int64], todo: NDArray[np.int64], refined: Refined, problem: Problem
) -> None:
    """Make words, sort, pool: batches of buckets in tasks, so that threads share the work evenly."""
    rank = np.cumsum(counts) - counts
    zeros: list[int] = []
    scalars = (problem.d, problem.c, problem.beta, problem.scale)

    def batch(some: list[int]) -> None:
        room = int(counts[some].max()) + 1
        starts, sums = np.empty(room, np.int64), np.empty(room, np.int64)
        for b in some:
            n, at, key = int(counts[b]), int(refined.offset[b]), plan.keys[b]
            keys = refined.words32[at : at + n]
            words, mark = keys, merge.MARK32
            if refined.wide[b]:
                words, mark = refined.words64[refined.place[b] : refined.place[b] + n], merge.MARK64
            buckets.make_words(keys, key, words)
            words.sort()
            _, zeroed = buckets.pool_bucket(
                words, key, int(rank[b]), *scalars, starts, sums, refined.results[at : at + n],
                refined.ends[b], np.uint64(mark),
            )  # fmt: skip
            if zeroed:
                zeros.append(zeroed)

    run([partial(batch, some) for some in _batches(counts, todo)], problem.threads)
    refined.zeros = sum(zeros)


def _batches(counts: NDArray[np.int64], todo: NDArray[np.int64]) -> list[list[int]]:
    """Consecutive buckets in lots of about BATCH weights, the largest first."""
    edges = np.searchsorted(np.cumsum(counts[todo]), np.arange(BATCH, counts[todo].sum() + BATCH, BATCH))
    lots = [part.tolist() for part in np.split(todo, np.unique(edges)) if part.size]
    return sorted(lots, key=lambda lot: -int(counts[lot].sum()))
