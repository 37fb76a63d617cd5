"""Monotone integer keys of float32, and the map from a key to its bucket.

``key`` turns the sign-magnitude bit pattern into an unsigned integer that grows with the value; -0.0 comes
just
before 0.0, and being equal they tie in every pooling. In a *cell*, the keys with the same top twelve bits
(an eighth of a binade), a value is linear
in the low twenty bits. A *slot* shares the top sixteen bits; it is cut into buckets of equal width, or
is part of a bucket made of several slots of one cell.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import float_of_bits, inline

CELL_BITS = 20
CELLS = 1 << (32 - CELL_BITS)
LOW_MASK = (1 << CELL_BITS) - 1
SLOT_BITS = 16
SLOTS = 1 << (32 - SLOT_BITS)
SLOT_MASK = (1 << SLOT_BITS) - 1


@inline
def key(bits):
    """Monotone key of a float32 bit pattern (uint32)."""
    sign = np.int32(bits) >> np.int32(31)
    return bits ^ (np.uint32(sign) | np.uint32(0x80000000))


@inline
def decode(k):
    """The float64 value of a key (int64); in a cell it is linear in the key."""
    magnitude = k - 0x80000000 if k >= 0x80000000 else 0x7FFFFFFF - k
    exponent = magnitude >> 23
    mantissa = magnitude & 0x7FFFFF
    if exponent > 0:
        mantissa += 0x800000
        exponent -= 1
    value = np.float64(mantissa) * float_of_bits(np.uint64((exponent + 874) << 52))  # 2^(exponent - 149)
    return value if k >= 0x80000000 else -value


@inline
def cell_ulp(k):
    """Distance between neighbouring values in the cell of a key."""
    first = (k >> CELL_BITS) << CELL_BITS
    return decode(first + 1) - decode(first)


@inline
def locate(bits, table):
    """Place of a bit pattern's bucket in streaming order: its slot's entry is base * 64 + shift.

    Streaming order is that of the bit patterns, in which negative weights come last and in descending
    order; it
    spares each pass the making of keys. ``Plan.order`` leads back to ascending order.
    """
    entry = np.uint64(table[np.uint64(bits >> np.uint32(SLOT_BITS))])
    low = np.uint64(bits) & np.uint64(SLOT_MASK)
    return (entry >> np.uint64(6)) + (low >> (entry & np.uint64(63)))
