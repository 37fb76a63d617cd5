"""float32 across ranks: tables are added up, retired alike on all ranks, and only the rest is exchanged.

Every rank runs the steps of ``certified.machine`` on the same tables: counts and integer sums of all ranks
together, so plan, hull and retired buckets are the same everywhere, without a word about them. The
weights of the buckets that are left are gathered on all ranks, and each sorts and pools them alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import machine
from weightshare.certified.plan import Plan
from weightshare.certified.problem import Clock, Problem
from weightshare.certified.refine import ZERO, cursors_of, heaviest_stretch, refine, scatter
from weightshare.distributed.wire import DistributedInfo, Wire
from weightshare.kernels.cpu import stream
from weightshare.kernels.threads import split

Slices = list[tuple[int, int]]


def solve(
    bits: NDArray[np.uint32],
    out: NDArray[np.float32],
    problem: Problem,
    wire: Wire,
    sizes: Sequence[int],
    info: DistributedInfo,
) -> None:
    """Write the prox of the whole vector at this rank's weights, given as bit patterns."""
    info.route = "certified"
    clock = Clock(info)
    slices = split(bits.size, problem.threads)
    plan = _common_plan(bits, problem, wire, sizes)
    clock.lap("plan")
    mine, buckets = _tables(bits, plan, slices, wire)
    if machine.wide(plan, buckets, problem.d):  # made from exact counts, the plan is that of one process
        plan = machine.counted_plan(plan, buckets, problem)
        mine, buckets = _tables(bits, plan, slices, wire)
    clock.lap("histogram")
    unresolved = machine.undecided(plan, buckets, problem, True)
    clock.lap("hull")
    rest, begin = _exchange(bits, plan, mine, unresolved, slices, wire)
    clock.lap("exchange")
    parts = split(rest.size, problem.threads)
    arrived = machine.histogram(rest, plan, parts).by_slice
    refined = refine(rest, plan, buckets.counts, arrived, unresolved, parts, problem, clock)
    answer = machine.Answer(plan, buckets, refined, unresolved, problem)
    # Results lie bucket by bucket in order of arrival: those of lower ranks come before this rank's.
    before = machine.histogram(rest[:begin], plan, split(begin, 1)).counts
    refined.cursors = cursors_of(mine.by_slice, refined.offset + before, unresolved)
    clock.lap("merge")
    answer.write(bits, slices, out)
    clock.lap("write")
    info.rounds, info.unresolved = int(refined.left > 0), refined.left / problem.d
    info.buckets = int(np.count_nonzero(buckets.counts))
    info.route = "partition" if info.unresolved > 0.5 else info.route


def _common_plan(bits: NDArray[np.uint32], problem: Problem, wire: Wire, sizes: Sequence[int]) -> Plan:
    """The plan that all ranks make from the same sample, to which each has given every stride-th weight."""
    stride = machine.sample_stride(problem.d)
    drawn = [-(-size // stride) for size in sizes]
    sample = np.empty(drawn[wire.rank], np.uint32)
    stream.sample_keys(bits, stride, sample)
    return machine.plan_from(wire.gather(sample, drawn, "the exchange of samples"), problem)


def _tables(
    bits: NDArray[np.uint32], plan: Plan, slices: Slices, wire: Wire
) -> tuple[machine.Buckets, machine.Buckets]:
    """Counts and sums per bucket: of this rank's weights, and of all.

    Of many thousand buckets few hold weights once these are tied; only the rows of those are exchanged.
    """
    mine = machine.histogram(bits, plan, slices)
    used = wire.any(mine.counts > 0, "the list of buckets in use")
    table = np.zeros((2, mine.counts.size), np.int64)
    held = np.stack([mine.counts[used], mine.totals[used]])
    table[:, used] = wire.total(held, "the sum of bucket tables")
    return mine, machine.buckets_of(plan, table[0], table[1], mine.by_slice)


def _exchange(
    bits: NDArray[np.uint32],
    plan: Plan,
    mine: machine.Buckets,
    unresolved: NDArray[np.bool_],
    slices: Slices,
    wire: Wire,
) -> tuple[NDArray[np.uint32], int]:
    """Bit patterns of all ranks' weights in unresolved buckets, and where those of this rank begin."""
    if not unresolved.any():
        return np.empty(0, np.uint32), 0
    held = np.where(unresolved, mine.counts, 0)
    keys = np.empty(int(held.sum()), np.uint32)
    cursors = cursors_of(mine.by_slice, np.cumsum(held) - held, unresolved)
    scatter(bits, plan, cursors, heaviest_stretch(plan, mine.counts, ~unresolved), slices, keys)
    sizes: list[int] = wire.rows([keys.size], "the exchange of counts")[:, 0].tolist()
    every = wire.gather(keys, sizes, "the exchange of unresolved weights")
    return np.where(every >= ZERO, every ^ ZERO, ~every).astype(np.uint32), sum(sizes[: wire.rank])
