"""Monotone integer keys of float32 and the three-step map from a key to its bucket.

``key`` turns the sign-magnitude bit pattern into an unsigned integer that grows with the value; -0.0 and 0.0
share the key 2^31. The top twelve bits choose a *cell* (an eighth of a binade), in which a value is linear in the
low twenty bits; a cell has equal-width *slots*, a slot equal-width *buckets*, with widths chosen where the weights are.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import float_of_bits, inline

CELL_BITS = 20
CELLS = 1 << (32 - CELL_BITS)
LOW_MASK = (1 << CELL_BITS) - 1


@inline
def key(bits):
    """Monotone key of a float32 bit pattern (uint32)."""
    sign = np.int32(bits) >> np.int32(31)
    magnitude = np.int32(bits & np.uint32(0x7FFFFFFF))
    return np.uint32((magnitude ^ sign) - sign) ^ np.uint32(0x80000000)


@inline
def decode(k):
    """The float64 value of a key (int64); linear inside a cell, its upper edge included."""
    signed = k - np.int64(0x80000000)
    magnitude = abs(signed)
    exponent = magnitude >> 23
    mantissa = magnitude & 0x7FFFFF
    if exponent > 0:
        mantissa += 0x800000
        exponent -= 1
    value = np.float64(mantissa) * float_of_bits(np.uint64((exponent + 874) << 52))  # 2^(exponent - 149)
    return -value if signed < 0 else value


@inline
def cell_ulp(k):
    """Distance between neighbouring values in the cell of a key."""
    first = (k >> CELL_BITS) << CELL_BITS
    return decode(first + 1) - decode(first)


@inline
def locate(k, cells, slots):
    """Bucket of a key: two small tables, each entry a base and a shift (base * 32 + shift)."""
    low = np.int32(k & np.uint32(LOW_MASK))
    entry = cells[np.uint64(k >> np.uint32(CELL_BITS))]
    entry = slots[np.uint64((entry >> np.int32(5)) + (low >> (entry & np.int32(31))))]
    return np.uint64((entry >> np.int32(5)) + (low >> (entry & np.int32(31)))), low
