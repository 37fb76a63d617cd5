"""The certified and the partition route, one machine: histogram, hull, retire, sort what is left, merge,
replay.

The two differ in the share of weights that the certificate leaves unresolved, which is measured, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import plan as planning
from weightshare.certified.problem import Clock, Problem
from weightshare.certified.refine import ZERO, Refined, Stretch, heaviest_stretch, refine
from weightshare.certified.result import ClusterTable, Info, ProxResult
from weightshare.kernels.cpu import hull, merge, stream
from weightshare.kernels.cpu.keys import CELL_BITS, CELLS, LOW_MASK
from weightshare.kernels.threads import run, split

SAMPLE = 1 << 15
STEPS = (8, 16)  # up to this many clusters the look-up is a chain of comparisons at the speed of memory
WORTH_A_THREAD = 1 << 17  # waking a thread costs as much as streaming about so many weights
EXACT_BITS = 104  # double-double holds 106


@dataclass
class Buckets:
    """Per bucket: count, sum of low key bits, exact sum (double-double); counts also per slice of the
    input."""

    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    by_slice: NDArray[np.int64]


def solve(
    bits: NDArray[np.uint32],
    out: NDArray[np.float32],
    problem: Problem,
    *,
    hint: planning.Groups | None,
    certify: bool,
    table: bool,
    ids: bool,
) -> ProxResult:
    """Prox of the float32 vector with bit patterns ``bits`` into ``out`` (which may share its memory)."""
    info = Info(route="certified")
    clock = Clock(info)
    slices = split(bits.size, min(problem.threads, max(1, bits.size // WORTH_A_THREAD)))
    plan = _sampled_plan(bits, problem, hint)
    clock.lap("plan")
    buckets = histogram(bits, plan, slices)
    _refuse_nonfinite(plan, buckets)
    clock.lap("histogram")
    if wide(plan, buckets, problem.d):
        plan = counted_plan(plan, buckets, problem)
        buckets = histogram(bits, plan, slices)
        clock.lap("histogram")
    unresolved = undecided(plan, buckets, problem, certify)
    clock.lap("hull")
    refined = refine(bits, plan, buckets.counts, buckets.by_slice, unresolved, slices, problem, clock)
    info.rounds = int(refined.left > 0)
    info.unresolved = refined.left / problem.d
    info.buckets = int(np.count_nonzero(buckets.counts))
    if info.unresolved > 0.5:
        info.route = "partition"
    answer = Answer(plan, buckets, refined, unresolved, problem)
    info.clusters = answer.clusters
    clock.lap("merge")
    clusters = answer.cluster_table() if table else None
    if clusters is not None:
        clusters.ids = answer.ids(bits, slices, clusters) if ids else None
        clock.lap("clusters")
    answer.write(bits, slices, out)
    clock.lap("write")
    return ProxResult(out, answer.zeros, info, clusters)


def _sampled_plan(bits: NDArray[np.uint32], problem: Problem, hint: planning.Groups | None) -> planning.Plan:
    """Plan from every stride-th weight, and from the hint if there is one."""
    stride = sample_stride(problem.d)
    sample = np.empty(problem.d // stride, np.uint32)
    stream.sample_keys(bits, stride, sample)
    return plan_from(sample, problem, hint)


def sample_stride(d: int) -> int:
    """Every how many-th weight goes into the sample."""
    return d // min(SAMPLE, max(1, d // 128))


def plan_from(
    sample: NDArray[np.uint32], problem: Problem, hint: planning.Groups | None = None
) -> planning.Plan:
    """Plan from the keys of a sample (which is sorted in place), and from the hint if there is one."""
    m = sample.size
    sample.sort()
    groups = planning.guess_groups(sample, problem.d, problem.c)
    if hint is not None:
        groups = planning.Groups(
            np.concatenate([groups.first, hint.first]),
            np.concatenate([groups.last, hint.last]),
            np.concatenate([groups.count, hint.count]),
        )
    seen = np.bincount(sample >> CELL_BITS, minlength=CELLS)
    per_cell: NDArray[np.float64] = seen.astype(np.float64) * (problem.d / m)
    return planning.make_plan(per_cell, sample, groups, problem.c)


def _cell_counts(plan: planning.Plan, buckets: Buckets) -> NDArray[np.float64]:
    """Exact number of weights per cell."""
    held = np.bincount(plan.keys >> CELL_BITS, weights=buckets.counts, minlength=CELLS)
    return held.astype(np.float64)


def counted_plan(plan: planning.Plan, buckets: Buckets, problem: Problem) -> planning.Plan:
    """Plan from the exact number of weights per cell: the same for every order of the input."""
    nothing = planning.Groups(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    return planning.make_plan(_cell_counts(plan, buckets), None, nothing, problem.c)


def histogram(bits: NDArray[np.uint32], plan: planning.Plan, slices: list[tuple[int, int]]) -> Buckets:
    """First pass: counts and exact sums of all buckets."""
    size = plan.keys.size
    counts = np.zeros((len(slices), size), np.int64)
    totals = np.zeros((len(slices), size), np.int64)

    def count(part: int, lo: int, hi: int) -> None:
        packed = np.empty(size, np.uint64)
        stream.histogram(bits[lo:hi], plan.table, packed, counts[part], totals[part])

    run([partial(count, part, lo, hi) for part, (lo, hi) in enumerate(slices)], len(slices))
    counts, total = counts[:, plan.order], totals.sum(axis=0)[plan.order]
    every = counts.sum(axis=0)
    negative = plan.keys < 0x80000000
    total[negative] = every[negative] * LOW_MASK - total[negative]  # their patterns are complements of keys
    return buckets_of(plan, every, total, counts)


def buckets_of(
    plan: planning.Plan, counts: NDArray[np.int64], totals: NDArray[np.int64], by_slice: NDArray[np.int64]
) -> Buckets:
    """Buckets with their exact sums, from counts and sums of low key bits."""
    high, low = np.zeros(counts.size), np.zeros(counts.size)
    hull.bucket_sums(plan.keys, counts, totals, high, low)
    return Buckets(counts, totals, high, low, by_slice)


def _refuse_nonfinite(plan: planning.Plan, buckets: Buckets) -> None:
    """NaN and infinity have the outermost keys, in cells of their own."""
    cell = plan.keys >> CELL_BITS
    if buckets.counts[(cell < 0x008) | (cell >= 0xFF8)].any():
        raise ValueError("w must be finite: it contains nan or inf")


def wide(plan: planning.Plan, buckets: Buckets, d: int) -> bool:
    """Whether a sum of d of these weights could need more bits than a double-double has."""
    live = np.flatnonzero(buckets.counts)
    cells = (plan.keys[live] >> CELL_BITS).astype(np.int64)
    nothing = ((cells == 0x7FF) | (cells == 0x800)) & (buckets.high[live] == 0)
    cells = cells[~nothing]  # zeros cost no bits
    if not cells.size:
        return False
    exponent = np.maximum(np.where(cells >= 0x800, cells - 0x800, 0x7FF - cells) >> 3, 1)
    return bool(exponent.max() - exponent.min() + 25 + d.bit_length() > EXACT_BITS)


def undecided(plan: planning.Plan, buckets: Buckets, problem: Problem, certify: bool) -> NDArray[np.bool_]:
    """Which buckets have to be looked into: all with two or more weights, less those the certificate
    retires."""
    unresolved = buckets.counts > 1
    if not certify:
        return unresolved
    size = plan.keys.size
    first, n = np.empty(size, np.int64), np.empty(size, np.int64)
    high, low = np.empty(size), np.empty(size)
    k = hull.pool(buckets.counts, buckets.high, buckets.low, problem.c, first, n, high, low)
    unresolved[:] = False
    hull.retire(
        buckets.counts, buckets.totals, buckets.high, buckets.low, plan.keys, plan.widths, problem.c,
        k, first, n, high, low, unresolved,
    )  # fmt: skip
    return unresolved


class Answer:
    """The entries of the merged vector, and what can be read off them."""

    def __init__(
        self,
        plan: planning.Plan,
        buckets: Buckets,
        refined: Refined,
        unresolved: NDArray[np.bool_],
        problem: Problem,
    ) -> None:
        self.plan, self.counts, self.refined, self.problem = plan, buckets.counts, refined, problem
        self.unresolved = unresolved
        self.live = np.flatnonzero(buckets.counts)
        room = 2 * self.live.size + 1
        entry, sums = np.empty((room, 4), np.int64), np.empty((room, 2))
        self.trim = np.zeros((self.counts.size, 2), np.int64)
        words = (refined.place, refined.wide, refined.words32, refined.words64)
        self.words = words
        k = merge.merge(
            self.live, self.counts, buckets.high, buckets.low, unresolved, plan.keys, *words, refined.ends,
            problem.c, self.trim, entry, sums,
        )  # fmt: skip
        self.entry, self.sums = entry[:k], sums[:k]
        self._settle()

    def _settle(self) -> None:
        """Values of the buckets; results of words that were absorbed from outside their bucket."""
        p, refined = self.problem, self.refined
        self.rank = np.cumsum(self.counts) - self.counts
        self.values = np.full(self.counts.size, np.nan, np.float32)
        self.edges = np.empty((self.counts.size, 2), np.float32)
        scalars = (p.d, p.c, p.beta, p.scale)
        zeros = merge.settle(self.entry, self.sums, self.live, self.counts, *scalars, self.values, self.edges)
        self.values[self.unresolved] = np.nan
        untouched = (self.trim[:, 0] == 0) & (self.trim[:, 1] == self.counts)
        todo = np.flatnonzero(self.unresolved & ~untouched)
        gone: list[tuple[int, int]] = []

        def patch(lo: int, hi: int) -> None:
            gone.append(
                merge.patch(
                    todo[lo:hi], self.counts, self.rank, self.plan.keys, refined.offset, *self.words,
                    self.trim, self.edges, *scalars, refined.results,
                )
            )  # fmt: skip

        run([partial(patch, lo, hi) for lo, hi in split(todo.size, 4 * p.threads)], p.threads)
        self.zeros = zeros + refined.zeros - sum(z for z, _ in gone)
        whole = int((self.entry[:, 0] < 0).sum())
        self.clusters = whole + refined.clusters - sum(absorbed for _, absorbed in gone)

    def _streaming(self, per_bucket: NDArray[Any]) -> NDArray[Any]:
        """A copy of a per-bucket array in the order of ``keys.locate``."""
        moved = np.empty_like(per_bucket)
        moved[self.plan.order] = per_bucket
        return moved

    def cluster_table(self) -> ClusterTable:
        """All clusters, in ascending order."""
        p = self.problem
        common = (self.entry, self.sums, self.counts, self.plan.keys, *self.words, p.d, p.c, p.beta, p.scale)
        none = np.empty(0)
        k = merge.list_clusters(*common, np.empty(0, np.int64), none, none, none)
        starts, sums, means, values = np.empty(k, np.int64), np.empty(k), np.empty(k), np.empty(k)
        merge.list_clusters(*common, starts, sums, means, values)
        return ClusterTable(starts, sums, means, values)

    def ids(
        self, bits: NDArray[np.uint32], slices: list[tuple[int, int]], clusters: ClusterTable
    ) -> NDArray[np.int64]:
        """Cluster of every weight, in the original order."""
        refined = self.refined
        ids, results = np.empty(self.counts.size, np.int64), np.empty(refined.left, np.int64)
        merge.number_places(
            self.live, self.counts, self.rank, self.unresolved, refined.offset, *self.words,
            clusters.starts, ids, results,
        )  # fmt: skip
        out = np.empty(bits.size, np.int64)

        def number(part: int, lo: int, hi: int) -> None:
            cursor = self._streaming(refined.cursors[part])
            stream.replay_ids(bits[lo:hi], self.plan.table, self._streaming(ids), cursor, results, out[lo:hi])

        run([partial(number, part, lo, hi) for part, (lo, hi) in enumerate(slices)], len(slices))
        return out

    def write(
        self, bits: NDArray[np.uint32], slices: list[tuple[int, int]], out: NDArray[np.float32]
    ) -> None:
        """Last pass: g(w) of every weight."""
        plan, refined = self.plan, self.refined
        steps = self._steps()
        values = self._streaming(self.values)
        stretch, inner = self._stretch()

        def look_up(part: int, lo: int, hi: int) -> None:
            if steps is not None:
                stream.steps(bits[lo:hi].view(np.float32), *steps, out[lo:hi])
                return
            cursor = self._streaming(refined.cursors[part])
            stream.replay(
                bits[lo:hi], stretch.skip, stretch.span, inner, plan.table, values, cursor, refined.results,
                out[lo:hi],
            )  # fmt: skip

        run([partial(look_up, part, lo, hi) for part, (lo, hi) in enumerate(slices)], len(slices))

    def _stretch(self) -> tuple[Stretch, np.float32]:
        """The consecutive resolved buckets of one value with most weights, and that value."""
        # An empty bucket passes for part of the cluster before it, so that a cluster is one stretch.
        filled = np.maximum.accumulate(np.where(self.counts > 0, np.arange(self.counts.size), 0))
        values = self.edges[filled, 1]
        known = ~self.unresolved & (self.counts[filled] > 0)
        stretch = heaviest_stretch(self.plan, self.counts, known, values)
        return stretch, values[stretch.first]

    def _may_cut_the_zeros(self, bucket: NDArray[np.int64]) -> bool:
        """Whether one of these begins at 0.0 while the one below may hold -0.0, which compares as equal."""
        at_zero = bucket[self.plan.keys[bucket] == ZERO]
        return bool((self.counts[at_zero - 1] > 0).any())

    def _steps(self) -> tuple[tuple[np.float32, ...], tuple[np.float32, ...]] | None:
        """First weight and value of each cluster if they are few and every one begins at a bucket."""
        if len(self.entry) > STEPS[-1] or (self.entry[:, 0] >= 0).any():
            return None
        starts = np.cumsum(self.entry[:, 2]) - self.entry[:, 2]
        bucket = self.live[np.searchsorted(self.rank[self.live], starts)]
        if (self.rank[bucket] != starts).any() or self._may_cut_the_zeros(bucket[1:]):
            return None
        edges = planning.decode_keys(self.plan.keys[bucket]).astype(np.float32)
        pad = next(size for size in STEPS if size >= edges.size) - edges.size
        last = self.edges[bucket[-1], 0]
        return (*edges, *[np.float32(np.inf)] * pad), (*self.edges[bucket, 0], *[last] * pad)
