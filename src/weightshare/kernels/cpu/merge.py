"""Join pooled buckets into the clusters of the whole vector, and give every bucket its results.

The clusters are kept as a short list of entries in sorted order. An entry is either one cluster
(``bucket`` -1)
or a stretch [lo, hi) of the sorted words of an unresolved bucket, whose clusters already are final.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.buckets import place_bits
from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import cell_ulp, decode
from weightshare.kernels.cpu.numerics import dd_add, linear_sum, merges, value32

MARK32 = 1 << 31
MARK64 = 1 << 63


@inline
def _word(place, wide, words32, words64):
    """A sorted word without its mark, and whether it heads a cluster."""
    if wide:
        word = words64[place]
        return word & np.uint64(MARK64 - 1), word >= np.uint64(MARK64)
    word = words32[place]
    return np.uint64(word & np.uint32(MARK32 - 1)), word >= np.uint32(MARK32)


@inline
def _head(lo, hi, step, wide, words32, words64, shift):
    """First (step 1) or last (step -1) cluster of the words [lo, hi): its count and sum of low bits."""
    total = np.int64(0)
    n = np.int64(0)
    t = lo if step > 0 else hi - 1
    while lo <= t < hi:
        word, head = _word(t, wide, words32, words64)
        if step > 0 and head and t > lo:
            break
        total += np.int64(word >> np.uint64(shift))
        n += 1
        if step < 0 and head:
            break
        t += step
    return n, total


@inline
def _drop_last(top, entry, sums, trim, keys, counts, place_of, wide, words32, words64):
    """Take the last cluster off the list of entries; return the new last entry."""
    b = entry[top, 0]
    if b < 0:
        return top - 1
    entry[top, 2] -= entry[top, 3]
    trim[b, 1] = entry[top, 2]
    lo, hi = entry[top, 1], entry[top, 2]
    if lo == hi:
        return top - 1
    shift = place_bits(counts[b])
    n, total = _head(place_of[b] + lo, place_of[b] + hi, -1, wide[b], words32, words64, shift)
    key = np.int64(keys[b])
    entry[top, 3] = n
    sums[top, 0], sums[top, 1] = linear_sum(n, decode(key), total, cell_ulp(key))
    return top


@kernel
def merge(
    live, counts, high, low, unresolved, keys, place_of, wide, words32, words64, ends, c, trim, entry, sums
):
    """Step 7: pool across buckets from left to right, absorbing only what merges; return the entries.

    Identity 2: what a bucket has pooled by itself lies inside one cluster of the whole, so only the
    clusters at bucket edges can still meet. ``trim[b]`` becomes the stretch of sorted words of bucket b
    that stays
    as it is. ``entry`` rows are (bucket, lo, hi, n), ``sums`` rows the sum of the entry's last cluster.
    """
    top = -1
    for b in live:
        key, size = np.int64(keys[b]), counts[b]
        base, ulp = decode(key), cell_ulp(key)
        shift = place_bits(size)
        n, sh, sl, lo, whole = size, high[b], low[b], size, False
        if unresolved[b]:
            n = lo = ends[b, 0]
            sh, sl = linear_sum(n, base, ends[b, 1], ulp)
            whole = True
        while True:
            while top >= 0 and merges(sums[top, 0], sums[top, 1], entry[top, 3], sh, sl, n, c):
                whole = False
                n += entry[top, 3]
                sh, sl = dd_add(sh, sl, sums[top, 0], sums[top, 1])
                top = _drop_last(top, entry, sums, trim, keys, counts, place_of, wide, words32, words64)
            if whole or lo == size:
                break
            m, total = _head(place_of[b] + lo, place_of[b] + size, 1, wide[b], words32, words64, shift)
            th, tl = linear_sum(m, base, total, ulp)
            if not merges(sh, sl, n, th, tl, m, c):
                break
            n += m
            lo += m
            sh, sl = dd_add(sh, sl, th, tl)
        if whole:
            lo = 0
        else:
            top += 1
            entry[top, 0], entry[top, 1], entry[top, 2], entry[top, 3] = -1, 0, n, n
            sums[top, 0], sums[top, 1] = sh, sl
        trim[b, 0], trim[b, 1] = lo, size
        if lo < size:
            top += 1
            entry[top, 0], entry[top, 1], entry[top, 2], entry[top, 3] = b, lo, size, ends[b, 2]
            sums[top, 0], sums[top, 1] = linear_sum(ends[b, 2], base, ends[b, 3], ulp)
    return top + 1


@kernel
def settle(entry, sums, live, counts, d, c, beta, scale, values, edges):
    """Step 7: value of every entry that is one cluster, for the buckets it covers; return the zeros in them.

    ``values[b]`` is what lookup gives a resolved bucket; ``edges[b]`` are the values left and right of what
    an unresolved bucket keeps.
    """
    zeros = np.int64(0)
    rank = np.int64(0)
    e = 0
    end = np.int64(0)
    value = np.float32(0.0)
    for b in live:
        for side in range(2):
            target = rank if side == 0 else rank + counts[b] - 1
            while end <= target:
                n = entry[e, 2] - entry[e, 1]
                if entry[e, 0] < 0:
                    turn = np.float64(d - 2 * end - n)
                    value, zeroed = value32(sums[e, 0], sums[e, 1], n, c, turn, beta, scale)
                    zeros += zeroed * n
                end += n
                e += 1
            edges[b, side] = value
        values[b] = edges[b, 0]
        rank += counts[b]
    return zeros


@kernel
def patch(
    todo,
    counts,
    rank,
    keys,
    offset,
    place_of,
    wide,
    words32,
    words64,
    trim,
    edges,
    d,
    c,
    beta,
    scale,
    results,
):
    """Step 7: overwrite the results of words that clusters from outside absorbed.

    Returns how many zeros and clusters are no more.
    """
    zeros, absorbed = np.int64(0), np.int64(0)
    for b in todo:
        size = counts[b]
        shift = place_bits(size)
        base, ulp = decode(np.int64(keys[b])), cell_ulp(np.int64(keys[b]))
        mask = np.uint64((1 << shift) - 1)
        for side in range(2):
            t = 0 if side == 0 else trim[b, 1]
            stop = trim[b, 0] if side == 0 else size
            while t < stop:
                n, total = _head(place_of[b] + t, place_of[b] + stop, 1, wide[b], words32, words64, shift)
                sh, sl = linear_sum(n, base, total, ulp)
                turn = np.float64(d - 2 * (rank[b] + t) - n)
                _, zeroed = value32(sh, sl, n, c, turn, beta, scale)
                zeros += zeroed * n
                absorbed += 1
                for place in range(place_of[b] + t, place_of[b] + t + n):
                    word, _ = _word(place, wide[b], words32, words64)
                    results[offset[b] + np.int64(word & mask)] = edges[b, side]
                t += n
    return zeros, absorbed


@kernel
def list_clusters(
    entry, sums, counts, keys, place_of, wide, words32, words64, d, c, beta, scale, starts, total, mean, value
):
    """Step 7: all clusters in sorted order: start, sum, mean, value; return their number.

    With empty arrays it only counts them.
    """
    k = np.int64(0)
    rank = np.int64(0)
    for e in range(entry.shape[0]):
        b = entry[e, 0]
        t, stop = entry[e, 1], entry[e, 2]
        while t < stop:
            if b < 0:
                n, sh, sl = stop, sums[e, 0], sums[e, 1]
            else:
                key, shift = np.int64(keys[b]), place_bits(counts[b])
                n, low = _head(place_of[b] + t, place_of[b] + stop, 1, wide[b], words32, words64, shift)
                sh, sl = linear_sum(n, decode(key), low, cell_ulp(key))
            if starts.size > 0:
                starts[k] = rank
                total[k] = sh + sl
                mean[k] = (sh + sl) / n
                value[k], _ = value32(sh, sl, n, c, np.float64(d - 2 * rank - n), beta, scale)
            k += 1
            t += n
            rank += n
    return k


@kernel
def number_places(
    live, counts, rank, unresolved, offset, place_of, wide, words32, words64, starts, ids, results
):
    """Step 7: cluster number of each resolved bucket, and of each place of arrival in the unresolved ones."""
    g = 0
    for b in live:
        shift = place_bits(counts[b])
        mask = np.uint64((1 << shift) - 1)
        ids[b] = -1
        for t in range(counts[b] if unresolved[b] else 1):
            while g + 1 < starts.size and starts[g + 1] <= rank[b] + t:
                g += 1
            if unresolved[b]:
                word, _ = _word(place_of[b] + t, wide[b], words32, words64)
                results[offset[b] + np.int64(word & mask)] = g
            else:
                ids[b] = g
