"""bfloat16 and float16: at most 65,536 different values, so one count per pattern replaces every sort."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import kernel


@kernel
def count_patterns(bits, counts):
    """Step 2: how often each 16-bit pattern occurs.

    In two tables, so that runs of one pattern do not wait on each other.
    """
    half = counts.shape[1]
    even = bits.size // 2
    for i in range(even):
        counts[0, np.uint64(bits[2 * i])] += 1
        counts[1, np.uint64(bits[2 * i + 1])] += 1
    if bits.size % 2:
        counts[0, np.uint64(bits[bits.size - 1])] += 1
    for p in range(half):
        counts[0, p] += counts[1, p]


@kernel
def gather(bits, table, out):
    """Step 8: out = table[pattern]."""
    for i in range(bits.size):
        out[i] = table[np.uint64(bits[i])]
