"""The streaming passes over all weights: histogram, scatter of what is unresolved, look-up and replay."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import kernel
from weightshare.kernels.cpu.keys import key, locate

CHUNK = 1 << 21  # 2^21 counts of at most 2^20 each: the packed sum stays below 2^41, the count below 2^22
COUNT_SHIFT = 42


@kernel
def sample_keys(bits, stride, out):
    """Keys of every stride-th weight."""
    for i in range(out.size):
        out[i] = key(bits[i * stride])


@kernel
def histogram(bits, cells, slots, packed, counts, sums):
    """Count and exact sum of the low key bits per bucket, in one 64-bit add per weight.

    Inside a cell a value is linear in the low bits of its key, so these integer sums determine the sum of
    the weights of a bucket exactly, in any order of addition.
    """
    one = np.uint64(1) << np.uint64(COUNT_SHIFT)
    mask = one - np.uint64(1)
    packed[:] = np.uint64(0)
    for first in range(0, bits.size, CHUNK):
        for i in range(first, min(first + CHUNK, bits.size)):
            b, low = locate(key(bits[i]), cells, slots)
            packed[b] += one | np.uint64(low)
        for b in range(packed.size):
            word = packed[b]
            if word != np.uint64(0):
                counts[b] += np.int64(word >> np.uint64(COUNT_SHIFT))
                sums[b] += np.int64(word & mask)
                packed[b] = np.uint64(0)


@kernel
def scatter(bits, cells, slots, cursor, keys):
    """Append the key of every weight of an unresolved bucket (cursor >= 0) to its bucket's stretch of ``keys``."""
    for i in range(bits.size):
        k = key(bits[i])
        b, _ = locate(k, cells, slots)
        place = cursor[b]
        if place >= 0:
            keys[np.uint64(place)] = k
            cursor[b] = place + 1


@kernel
def replay(bits, cells, slots, values, cursor, results, out):
    """Write g(w): the bucket's value, or (NaN) the next result of its bucket in order of arrival.

    Walking the weights in the order of the scatter meets each bucket's results in the order in which they
    were stored; that order replaces an index array.
    """
    for i in range(bits.size):
        b, _ = locate(key(bits[i]), cells, slots)
        value = values[b]
        if value == value:
            out[i] = value
        else:
            place = np.uint64(cursor[b])
            out[i] = results[place]
            cursor[b] += 1


@kernel
def replay_ids(bits, cells, slots, ids, cursor, results, out):
    """``replay`` for cluster numbers (int64; -1 marks an unresolved bucket)."""
    for i in range(bits.size):
        b, _ = locate(key(bits[i]), cells, slots)
        number = ids[b]
        if number < 0:
            number = results[np.uint64(cursor[b])]
            cursor[b] += 1
        out[i] = number


@kernel
def steps(w, edges, values, out):
    """Write g(w) for a handful of clusters: a chain of vector comparisons with each cluster's first weight."""
    block = np.empty(2048, np.float32)
    for first in range(0, w.size, block.size):
        part = w[first : first + block.size]
        for i in range(part.size):
            block[i] = values[0]
        for j in range(1, edges.size):
            edge, value = edges[j], values[j]
            for i in range(part.size):
                block[i] = value if part[i] >= edge else block[i]
        for i in range(part.size):
            out[first + i] = block[i]
