"""Lay buckets out over the key range from the bucket width that is wanted in every slot."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import CELL_BITS, SLOT_BITS

PER_CELL = 1 << (CELL_BITS - SLOT_BITS)


@inline
def _narrowest(shifts, first):
    """The narrowest width that some slot of a cell wants."""
    narrowest = shifts[first]
    for j in range(first + 1, first + PER_CELL):
        narrowest = min(narrowest, shifts[j])
    return np.int64(narrowest)


@kernel
def count_buckets(shifts):
    """Step 1: how many buckets ``lay_out`` makes."""
    total = np.int64(0)
    for first in range(0, shifts.size, PER_CELL):
        common = _narrowest(shifts, first)
        if common == CELL_BITS:  # most cells are one bucket
            total += 1
            continue
        common = max(common, np.int64(SLOT_BITS))
        for j in range(first, first + PER_CELL):
            if shifts[j] < SLOT_BITS:
                total += np.int64(1) << (SLOT_BITS - shifts[j])
            elif (j - first) & ((1 << (common - SLOT_BITS)) - 1) == 0:
                total += 1
    return total


@kernel
def lay_out(shifts, table, keys, widths, order):
    """Step 1: entries of the slots; first key, width in bits and place in streaming order of the buckets.

    The slots of a cell that are not cut share the narrowest width that some slot wants, but no narrower
    than one slot. A negative slot is found by its bit pattern, the complement of its keys, so its buckets
    count downwards.
    """
    size = order.size
    at = np.int64(0)
    negative = shifts.size // 2
    below = np.int64(0)
    for first in range(0, shifts.size, PER_CELL):
        if first == negative:
            below = at
        common = max(_narrowest(shifts, first), np.int64(SLOT_BITS))
        if common == CELL_BITS:  # most cells are one bucket
            keys[at] = np.int64(first) << SLOT_BITS
            widths[at] = common
            at += 1
            base = (at - 1 - below) if first >= negative else (size - at)
            place = first - negative if first >= negative else shifts.size - PER_CELL - first
            table[place : place + PER_CELL] = (base << 6) | SLOT_BITS
            continue
        for j in range(first, first + PER_CELL):
            begin = at
            shift = np.int64(shifts[j])
            if shift < SLOT_BITS:
                for part in range(np.int64(1) << (SLOT_BITS - shift)):
                    keys[at] = (np.int64(j) << SLOT_BITS) + (part << shift)
                    widths[at] = shift
                    at += 1
            elif j & ((1 << (common - SLOT_BITS)) - 1) == 0:
                keys[at] = np.int64(j) << SLOT_BITS
                widths[at] = common
                at += 1
            else:
                begin = at - 1
            shift = min(shift, np.int64(SLOT_BITS))
            if j >= negative:
                table[j - negative] = ((begin - below) << 6) | shift
            else:
                table[shifts.size - 1 - j] = ((size - at) << 6) | shift
    for b in range(size):
        order[b] = b - below if b >= below else size - 1 - b
