"""Where the buckets go: a map from keys to buckets, finer where a sample finds weights or clusters.

The plan is a matter of speed alone. Sums of weights are exact under any plan, so clusters and results do
not depend
on it; only when the weights span so many orders of magnitude that a sum could lose bits (``wide``) the
plan is made from exact counts instead of a sample, which makes it a function of the weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightshare.kernels.cpu.hull import pool
from weightshare.kernels.cpu.keys import CELL_BITS, CELLS, SLOT_BITS, SLOTS
from weightshare.kernels.cpu.layout import count_buckets, lay_out

TARGET = 24576  # weights per bucket to be sorted: few enough streams to write, words in the L2 cache
SHORT_WORD = 31  # bits of a word of 32, less the mark
MOST_BUCKETS = 1 << 17
TIED_BUCKET = 16  # weights per bucket below which buckets cost more than they save, where most weights tie
LOOSE_BUCKET = 512  # and where they do not
SEEN = 8  # a cluster of fewer sampled weights is noise


@dataclass
class Plan:
    """The table of ``keys.locate``; per bucket its first key, its width in bits, its place in streaming
    order."""

    table: NDArray[np.uint32]
    keys: NDArray[np.uint32]
    widths: NDArray[np.int8]
    order: NDArray[np.int64]


@dataclass
class Groups:
    """Guessed clusters: first and last key, number of weights."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    count: NDArray[np.float64]


def decode_keys(keys: NDArray[np.integer]) -> NDArray[np.float64]:
    """Values of keys (``keys.decode`` over an array; 2^128 for the key after the largest float32)."""
    keys = keys.astype(np.int64)
    magnitude = np.where(keys >= 0x80000000, keys - 0x80000000, 0x7FFFFFFF - keys)
    exponent = np.maximum(magnitude >> 23, 1)
    mantissa = magnitude - ((exponent - 1) << 23)
    size: NDArray[np.float64] = np.ldexp(mantissa.astype(np.float64), exponent - 150)
    return np.copysign(size, (keys - 0x80000000).astype(np.float64))


def encode_values(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Keys of the float32 nearest to the given values."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64)
    return np.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


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
    counts = n.astype(np.float64) * (d / m)
    return Groups(sample[first].astype(np.int64), sample[first + n - 1].astype(np.int64), counts)


def make_plan(
    per_cell: NDArray[np.float64], sample: NDArray[np.uint32] | None, groups: Groups, c: float
) -> Plan:
    """Plan from (estimated) weights per cell, a sorted sample for local density, and guessed clusters."""
    dense = np.repeat((CELL_BITS - _parts(per_cell)).astype(np.int8), SLOTS // CELLS)
    if sample is not None:
        _follow(dense, sample, per_cell.sum() / sample.size)
    wanted = _wanted_shifts(groups, c)
    total = per_cell.sum()
    each = TIED_BUCKET if groups.count.sum() > 0.5 * total else LOOSE_BUCKET
    most = np.clip(total / each, CELLS * 2, MOST_BUCKETS)
    for coarsen in range(CELL_BITS + 1):
        shifts = dense.copy()
        _refine(shifts, groups, np.minimum(wanted + coarsen, CELL_BITS))
        if count_buckets(shifts) <= most:
            break
    return _build(shifts)


def _parts(per_cell: NDArray[np.float64]) -> NDArray[np.int64]:
    """Into how many buckets (a power of two: its exponent) to cut each cell, if nothing more is known.

    Buckets hold at most TARGET weights; and a place in the bucket and the bits of a key in it, n weights of a
    cell in 2^p buckets having log2(n) - p of the one and CELL_BITS - p of the other, fit into a short word
    of ``kernels.cpu.buckets`` with one bit to spare, since n is estimated: half the memory, and faster.
    """
    bits = np.log2(np.maximum(per_cell, 1.0))
    fitting = (bits + CELL_BITS + 1 - SHORT_WORD) / 2
    parts = np.ceil(np.clip(np.maximum(bits - np.log2(TARGET), fitting), 0, CELL_BITS))
    exponents: NDArray[np.int64] = parts.astype(np.int64)
    return exponents


def _build(shifts: NDArray[np.int8]) -> Plan:
    """Tables from the bucket width wanted in every slot."""
    table = np.empty(SLOTS, np.uint32)
    size = count_buckets(shifts)
    keys, widths = np.empty(size, np.uint32), np.empty(size, np.int8)
    order = np.empty(size, np.int64)
    lay_out(shifts, table, keys, widths, order)
    return Plan(table, keys, widths, order)


def _wanted_shifts(groups: Groups, c: float) -> NDArray[np.int64]:
    """Bucket width in bits that lets each guessed cluster retire.

    A bucket that holds a whole cluster retires if it is narrower than c n; a cluster wider than that needs
    about 32 buckets across, so that the sparse ones at its ends stay few.
    """
    cell = ((groups.first + groups.last) >> 1) >> CELL_BITS
    ulp = decode_keys((cell << CELL_BITS) + 1) - decode_keys(cell << CELL_BITS)
    spread = (decode_keys(groups.last) - decode_keys(groups.first)) / 32
    wanted = np.maximum(spread, np.minimum(0.25 * c * groups.count, 1e300)) / ulp
    return np.clip(np.floor(np.log2(np.maximum(wanted, 1.0))), 0, CELL_BITS).astype(np.int64)


def _follow(shifts: NDArray[np.int8], sample: NDArray[np.uint32], each: float) -> None:
    """Narrower buckets in slots where the sample is denser than its cell as a whole."""
    slots = sample >> SLOT_BITS
    first = np.flatnonzero(np.diff(slots, prepend=np.uint32(SLOTS)))  # the sample is sorted
    slot, load = slots[first], np.diff(first, append=slots.size)
    parts = np.ceil(np.log2(np.maximum(load * (each / TARGET), 1.0))).astype(np.int64)
    shifts[slot] = np.minimum(shifts[slot], np.maximum(SLOT_BITS + (parts == 0) * CELL_BITS - parts, 0))


def _refine(shifts: NDArray[np.int8], groups: Groups, wanted: NDArray[np.int64]) -> None:
    """Give the slots at both ends of every guessed cluster the width it wants."""
    reach = np.int64(1) << wanted
    for edge in (groups.first - reach, groups.first, groups.last, groups.last + reach):
        slot = np.clip(edge, 0, (1 << 32) - 1) >> SLOT_BITS
        np.minimum.at(shifts, slot, wanted.astype(np.int8))
