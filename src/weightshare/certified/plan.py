"""Where the buckets go: a two-step map from keys to buckets, finer where a sample finds weights or clusters.

The plan is a matter of speed alone. Sums of weights are exact under any plan, so clusters and results do not depend
on it; only when the weights span so many orders of magnitude that a sum could lose bits (``wide``) the
plan is made from exact counts instead of a sample, which makes it a function of the weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightshare.kernels.cpu.hull import pool
from weightshare.kernels.cpu.keys import CELL_BITS, CELLS, LOW_MASK

TARGET = 6144  # weights per bucket when they have to be sorted: words and scratch stay in the L2 cache
MOST_BUCKETS = 1 << 17
SPLIT = 10  # at most 2^10 equal parts in one step: cell to slots, slot to buckets
SEEN = 8  # a cluster of fewer sampled weights is noise


@dataclass
class Plan:
    """Tables of ``keys.locate`` and, per bucket, its first key and the width of its key range in bits."""

    cells: NDArray[np.int32]
    slots: NDArray[np.int32]
    keys: NDArray[np.uint32]
    widths: NDArray[np.int8]


@dataclass
class Groups:
    """Guessed clusters: first and last key, number of weights."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    count: NDArray[np.float64]


def decode_keys(keys: NDArray[np.integer]) -> NDArray[np.float64]:
    """Values of keys (``keys.decode`` over an array; 2^128 for the key after the largest float32)."""
    signed = keys.astype(np.int64) - 0x80000000
    magnitude = np.abs(signed)
    exponent = np.maximum(magnitude >> 23, 1)
    mantissa = magnitude - ((exponent - 1) << 23)
    return np.copysign(np.ldexp(mantissa.astype(np.float64), exponent - 150), signed)


def encode_values(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Keys of the float32 nearest to the given values."""
    bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits) + 0x80000000


def guess_groups(sample: NDArray[np.uint32], d: int, c: float) -> Groups:
    """Clusters of a sorted sample of keys, each sampled weight standing for d / m weights."""
    m = sample.size
    values = decode_keys(sample)
    first, n = np.empty(m, np.int64), np.empty(m, np.int64)
    high, low = np.empty(m), np.empty(m)
    k = pool(np.ones(m, np.int64), values, np.zeros(m), c * (d / m), first, n, high, low)
    first, n = first[:k], n[:k]
    keep = n >= SEEN
    first, n = first[keep], n[keep]
    return Groups(sample[first].astype(np.int64), sample[first + n - 1].astype(np.int64), n * (d / m))


def make_plan(
    per_cell: NDArray[np.float64], sample: NDArray[np.uint32] | None, groups: Groups, c: float
) -> Plan:
    """Plan from (estimated) weights per cell, an optional sorted sample for local density, and guessed clusters."""
    parts = np.ceil(np.log2(np.maximum(per_cell / TARGET, 1.0))).astype(np.int64)
    slot_shift = CELL_BITS - np.minimum(parts, CELL_BITS - 6)
    wanted, cell_of = _wanted_shifts(groups, c)
    for coarsen in range(CELL_BITS + 1):
        plan = _tables(slot_shift, sample, per_cell, groups, np.minimum(wanted + coarsen, CELL_BITS), cell_of)
        if plan is not None:
            return plan
    raise AssertionError("a plan without refinement always fits")


def _wanted_shifts(groups: Groups, c: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bucket width in bits that lets each guessed cluster retire, and the cell it is measured in.

    A bucket that holds a whole cluster retires if it is narrower than c n; a cluster wider than that needs
    about 32 buckets across, so that the sparse ones at its ends stay few.
    """
    middle = (groups.first + groups.last) >> 1
    cell = middle >> CELL_BITS
    ulp = decode_keys((cell << CELL_BITS) + 1) - decode_keys(cell << CELL_BITS)
    spread = (decode_keys(groups.last) - decode_keys(groups.first)) / 32
    wanted = np.maximum(spread, np.minimum(0.25 * c * groups.count, 1e300)) / ulp
    return np.clip(np.floor(np.log2(np.maximum(wanted, 1.0))), 0, CELL_BITS).astype(np.int64), cell


def _tables(
    base_shift: NDArray[np.int64],
    sample: NDArray[np.uint32] | None,
    per_cell: NDArray[np.float64],
    groups: Groups,
    wanted: NDArray[np.int64],
    cell_of: NDArray[np.int64],
) -> Plan | None:
    """Tables for the given resolutions, or None if they would need too many buckets."""
    cell_shift = base_shift.copy()
    np.minimum.at(cell_shift, cell_of, np.maximum(wanted, CELL_BITS - SPLIT))
    slots_in = np.int64(1) << (CELL_BITS - cell_shift)
    slot_first = np.cumsum(slots_in) - slots_in
    total = int(slots_in.sum())
    if total > MOST_BUCKETS:
        return None
    shift = np.repeat(cell_shift, slots_in)
    start = (np.arange(total) - np.repeat(slot_first, slots_in)) << shift
    fine = shift.copy()
    if sample is not None and sample.size:
        cell, low = (sample >> CELL_BITS).astype(np.int64), (sample & LOW_MASK).astype(np.int64)
        load = np.bincount(slot_first[cell] + (low >> cell_shift[cell]), minlength=total)
        load = load * (per_cell.sum() / sample.size)
        extra = np.ceil(np.log2(np.maximum(load / (2 * TARGET), 1.0))).astype(np.int64)
        fine = np.maximum(fine - np.minimum(extra, SPLIT), 0)
    _refine(fine, shift, slot_first, cell_shift, groups, wanted)
    buckets_in = np.int64(1) << (shift - fine)
    if int(buckets_in.sum()) > MOST_BUCKETS:
        return None
    bucket_first = np.cumsum(buckets_in) - buckets_in
    cells = (slot_first << 5) | cell_shift
    slots = ((bucket_first - (start >> fine)) << 5) | fine
    inside = np.arange(int(buckets_in.sum())) - np.repeat(bucket_first, buckets_in)
    origin = (np.repeat(np.arange(CELLS), slots_in) << CELL_BITS) + start
    widths = np.repeat(fine, buckets_in)
    keys = np.repeat(origin, buckets_in) + (inside << widths)
    return Plan(
        cells.astype(np.int32), slots.astype(np.int32), keys.astype(np.uint32), widths.astype(np.int8)
    )


def _refine(
    fine: NDArray[np.int64],
    shift: NDArray[np.int64],
    slot_first: NDArray[np.int64],
    cell_shift: NDArray[np.int64],
    groups: Groups,
    wanted: NDArray[np.int64],
) -> None:
    """Give the slots at both ends of every guessed cluster the width it wants."""
    reach = np.int64(1) << wanted
    for edge in (groups.first - reach, groups.first, groups.last, groups.last + reach):
        edge = np.clip(edge, 0, (CELLS << CELL_BITS) - 1)
        cell = edge >> CELL_BITS
        slot = slot_first[cell] + ((edge & LOW_MASK) >> cell_shift[cell])
        np.minimum.at(fine, slot, np.maximum(wanted, shift[slot] - SPLIT))
