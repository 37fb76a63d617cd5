"""Sort and pool the buckets that the certificate left, a cache full at a time, on all threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.certified.plan import SHORT_WORD, Plan
from weightshare.certified.problem import Clock, Problem
from weightshare.kernels.cpu import buckets, merge, stream
from weightshare.kernels.threads import run

MOSTLY = 0.7  # share of the weights in one stretch from which it pays to test for it first
LINES = 0.25  # share of the weights to scatter from which it pays to do so a cache line at a time
ZERO = 0x80000000  # key of 0.0
LOT = 1 << 16  # weights per task: their words, runs and results stay in the L2 cache


@dataclass
class Refined:
    """The unresolved weights bucket by bucket: sorted words, results in order of arrival, what merging
    needs."""

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
    clusters: int


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
    if not todo.size:
        return _nothing(size, len(slices))
    held = np.where(unresolved, counts, 0)
    offset = np.cumsum(held) - held
    left = int(held.sum())
    place_bits = np.zeros(size, np.int64)
    place_bits[todo] = np.ceil(np.log2(counts[todo])).astype(np.int64)
    wide = unresolved & (place_bits + plan.widths > SHORT_WORD)
    held_wide = np.where(wide, counts, 0)
    place = np.where(wide, np.cumsum(held_wide) - held_wide, offset)
    refined = Refined(
        left=left, offset=offset, place=place, wide=wide,
        words32=np.empty(left, np.uint32), words64=np.empty(int(held_wide.sum()), np.uint64),
        ends=np.zeros((size, 4), np.int64), results=np.empty(left, np.float32),
        cursors=cursors_of(by_slice, offset, unresolved), zeros=0, clusters=0,
    )  # fmt: skip
    stretch = heaviest_stretch(plan, counts, ~unresolved)
    scatter(bits, plan, refined.cursors, stretch, slices, refined.words32)
    clock.lap("scatter")
    _sort_and_pool(plan, counts, todo, refined, problem)
    clock.lap("sort and pool")
    return refined


def _nothing(size: int, slices: int) -> Refined:
    """What is left where every bucket is retired."""
    return Refined(
        left=0, offset=np.zeros(size, np.int64), place=np.zeros(size, np.int64),
        wide=np.zeros(size, np.bool_), words32=np.empty(0, np.uint32), words64=np.empty(0, np.uint64),
        ends=np.zeros((size, 4), np.int64),
        results=np.empty(0, np.float32), cursors=np.full((slices, size), -1), zeros=0, clusters=0,
    )  # fmt: skip


def scatter(
    bits: NDArray[np.uint32],
    plan: Plan,
    cursors: NDArray[np.int64],
    stretch: Stretch,
    slices: list[tuple[int, int]],
    keys: NDArray[np.uint32],
) -> None:
    """Keys of the weights of unresolved buckets, bucket by bucket, in order of arrival."""
    start = np.empty(cursors.shape, np.int64)  # in C order: two threads must not write to one cache line
    start[:, plan.order] = cursors
    most = keys.size > LINES * bits.size

    def part(number: int, lo: int, hi: int) -> None:
        if most:
            lines = np.empty((plan.keys.size, stream.LINE), np.uint32)
            stream.scatter_by_lines(bits[lo:hi], plan.table, start[number], keys, lines)
        else:
            stream.scatter(bits[lo:hi], stretch.skip, stretch.span, plan.table, start[number], keys)

    run([partial(part, number, lo, hi) for number, (lo, hi) in enumerate(slices)], len(slices))


@dataclass
class Stretch:
    """Bit patterns ``skip`` to ``skip + span``, in consecutive buckets from ``first``."""

    skip: np.uint32
    span: np.uint32
    first: int


def heaviest_stretch(
    plan: Plan, counts: NDArray[np.int64], wanted: NDArray[np.bool_], labels: NDArray[Any] | None = None
) -> Stretch:
    """The consecutive wanted buckets (of one sign and one label) with most weights, if these are most
    weights.

    Otherwise the stretch holds one pattern, a nan, that never occurs.
    """
    breaks = (wanted[1:] != wanted[:-1]) | ((plan.keys[1:] < ZERO) != (plan.keys[:-1] < ZERO))
    if labels is not None:
        breaks |= labels[1:] != labels[:-1]
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    held = np.add.reduceat(np.where(wanted, counts, 0), first)
    k = int(held.argmax())
    if held[k] < MOSTLY * counts.sum():
        return Stretch(np.uint32(0x7FFFFFFF), np.uint32(0), -1)
    last = int(first[k + 1]) - 1 if k + 1 < first.size else counts.size - 1
    lo, hi = int(plan.keys[first[k]]), int(plan.keys[last]) + (1 << int(plan.widths[last])) - 1
    skip = lo - ZERO if lo >= ZERO else 0xFFFFFFFF - hi
    return Stretch(np.uint32(skip), np.uint32(hi - lo), int(first[k]))


def cursors_of(
    by_slice: NDArray[np.int64], offset: NDArray[np.int64], unresolved: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Where each slice's weights of each bucket begin; -1 for buckets that need no look inside."""
    before = np.cumsum(by_slice, axis=0) - by_slice
    return np.where(unresolved, offset + before, -1)


def _sort_and_pool(
    plan: Plan, counts: NDArray[np.int64], todo: NDArray[np.int64], refined: Refined, problem: Problem
) -> None:
    """Make words, sort, pool: lots of buckets that fit the cache, shared among the threads as they come."""
    rank = np.cumsum(counts) - counts
    found: list[tuple[int, int]] = []
    places = (refined.offset, refined.place)
    scalars = (problem.d, problem.c, problem.beta, problem.scale)

    def solve(lot: NDArray[np.int64]) -> None:
        wide = bool(refined.wide[lot[0]])
        words = refined.words64 if wide else refined.words32
        mark = np.uint64(merge.MARK64 if wide else merge.MARK32)
        buckets.make_words(lot, plan.keys, counts, *places, refined.words32, words)
        for begin, size in zip(refined.place[lot].tolist(), counts[lot].tolist()):
            words[begin : begin + size].sort()
        room = int(counts[lot].max()) + 1
        scratch, sums = np.empty((4, room), np.int32), np.empty(room, np.int64)
        values = np.empty(room, np.float32)
        found.append(
            buckets.pool_buckets(
                lot, plan.keys, counts, rank, *places, words, *scalars,
                scratch, sums, values, refined.results, refined.ends, mark,
            )
        )  # fmt: skip

    wide = refined.wide[todo]
    lots = [lot for part in (todo[wide], todo[~wide]) for lot in _lots(counts, part)]
    run([partial(solve, lot) for lot in lots], problem.threads)
    refined.zeros = sum(zeros for zeros, _ in found)
    refined.clusters = sum(clusters for _, clusters in found)


def _lots(counts: NDArray[np.int64], todo: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Consecutive buckets in lots of about LOT weights."""
    before = np.cumsum(counts[todo]) - counts[todo]
    cuts = np.flatnonzero(np.diff(before // LOT)) + 1
    return [part for part in np.split(todo, cuts) if part.size]
