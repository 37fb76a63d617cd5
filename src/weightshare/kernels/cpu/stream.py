"""The streaming passes over all weights: histogram, scatter of what is unresolved, look-up and replay."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import kernel, prefetch
from weightshare.kernels.cpu.keys import LOW_MASK, key, locate

CHUNK = 1 << 21  # 2^21 counts of at most 2^20 each: the packed sum stays below 2^41, the count below 2^22
COUNT_SHIFT = 42
AHEAD = 20  # a little more than a cache line of float32
LINE = 16  # keys in a cache line


@kernel
def sample_keys(bits, stride, out):
    """Step 1: keys of every stride-th weight."""
    for i in range(out.size):
        out[i] = key(bits[i * stride])


@kernel
def histogram(bits, table, packed, counts, sums):
    """Step 2: count and exact sum of the low key bits per bucket, in one 64-bit add per weight.

    Inside a cell a value is linear in the low bits of its key, so these integer sums determine the sum of
    the weights of a bucket exactly, in any order of addition.
    """
    one = np.uint64(1) << np.uint64(COUNT_SHIFT)
    mask = one - np.uint64(1)
    packed[:] = np.uint64(0)
    for first in range(0, bits.size, CHUNK):
        for i in range(first, min(first + CHUNK, bits.size)):
            packed[locate(bits[i], table)] += one | np.uint64(bits[i] & np.uint32(LOW_MASK))
        for b in range(packed.size):
            word = packed[b]
            if word != np.uint64(0):
                counts[b] += np.int64(word >> np.uint64(COUNT_SHIFT))
                sums[b] += np.int64(word & mask)
                packed[b] = np.uint64(0)


@kernel
def scatter(bits, skip, span, table, cursor, keys):
    """Step 5: append the key of every weight of an unresolved bucket (cursor >= 0) to its bucket's stretch of
    ``keys``.

    Patterns from ``skip`` to ``skip + span`` are known to be resolved and need no look-up.
    """
    for i in range(bits.size):
        pattern = bits[i]
        if np.uint32(pattern - skip) > span:
            b = locate(pattern, table)
            place = cursor[b]
            if place >= 0:
                keys[np.uint64(place)] = key(pattern)
                cursor[b] = place + 1


@kernel
def scatter_by_lines(bits, table, cursor, keys, lines):
    """Step 5: ``scatter`` for when most buckets are unresolved: keys gather in ``lines``, one per bucket.

    A cache line goes to ``keys`` when it is full. So of the thousands of pages that the buckets lie on, one
    is touched for every 16 weights, not for every weight; the lines themselves stay in the L2 cache.
    """
    start = cursor.copy()
    last = np.uint64(LINE - 1)
    for i in range(bits.size):
        pattern = bits[i]
        b = locate(pattern, table)
        place = cursor[b]
        if place >= 0:
            at = np.uint64(place) & last
            lines[b, at] = key(pattern)
            cursor[b] = place + 1
            if at == last:
                first = place - (LINE - 1)
                if first >= start[b]:
                    for j in range(LINE):
                        keys[np.uint64(first + j)] = lines[b, j]
                else:  # the places before belong to another bucket or thread
                    for p in range(start[b], place + 1):
                        keys[p] = lines[b, p & (LINE - 1)]
    for b in range(cursor.size):
        for p in range(max(start[b], cursor[b] & ~(LINE - 1)), cursor[b]):
            keys[p] = lines[b, p & (LINE - 1)]


@kernel
def replay(bits, skip, span, inner, table, values, cursor, results, out):
    """Step 8: write g(w): the bucket's value, or (NaN) the next result of its bucket in order of arrival.

    Walking the weights in the order of the scatter meets each bucket's results in the order in which they
    were stored; that order replaces an index array. Patterns from ``skip`` to ``skip + span`` all
    have the value ``inner``.
    """
    for i in range(bits.size):
        pattern = bits[i]
        value = inner
        if np.uint32(pattern - skip) > span:
            b = locate(pattern, table)
            value = values[b]
            if value != value:
                place = cursor[b]
                prefetch(results, place + AHEAD)
                value = results[np.uint64(place)]
                cursor[b] = place + 1
        out[i] = value


@kernel
def replay_ids(bits, table, ids, cursor, results, out):
    """Step 8: ``replay`` for cluster numbers (int64; -1 marks an unresolved bucket)."""
    for i in range(bits.size):
        b = locate(bits[i], table)
        number = ids[b]
        if number < 0:
            number = results[np.uint64(cursor[b])]
            cursor[b] += 1
        out[i] = number


@kernel
def steps(w, edges, values, out):
    """Step 8: write g(w) for a handful of clusters: compare with the first weight of each.

    ``edges`` and ``values`` are tuples, so that the inner loop unrolls and the outer one vectorises: this
    runs at the speed of memory. -0.0 and 0.0 compare as equal, though their keys differ.
    """
    for i in range(w.size):
        value = values[0]
        for j in range(len(edges)):
            value = values[j] if w[i] >= edges[j] else value
        out[i] = value
