"""Unresolved buckets, one at a time in cache: words that sort with their place of arrival, and pooling.

A word is (key - first key of the bucket) * 2^b + place of arrival, b bits for the place. Sorting the words
sorts the
weights and keeps for each where its result belongs, so no value is ever searched for. The top bit of
a sorted word marks the first weight of a cluster.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import cell_ulp, decode
from weightshare.kernels.cpu.numerics import linear_sum, merges, quick32, value32


@inline
def place_bits(n):
    """Bits that number n places."""
    b = 0
    while (1 << b) < n:
        b += 1
    return b


@kernel
def make_words(some, firsts, counts, offset, place_of, keys, words):
    """Step 6: words of the buckets ``some`` from their keys in order of arrival (may be done in place)."""
    for b in some:
        size, shift = counts[b], place_bits(counts[b])
        source, target = keys[offset[b] : offset[b] + size], words[place_of[b] : place_of[b] + size]
        first = firsts[b]
        for j in range(size):
            target[j] = ((source[j] - first) << shift) | j


@inline
def _merge_rule(ra, na, rb, nb, reach, base, ulp, c):
    """Identity 1 inside a bucket: integer sums of low bits, exact for singletons, filtered otherwise.

    ``reach`` is c / ulp, so that the comparison is in units of the last place.
    """
    wa, wb = np.float64(na), np.float64(nb)
    left, right = np.float64(rb) * wa, np.float64(ra) * wb
    far = reach * (wa * wb * (wa + wb))
    gap = left - right - far
    doubt = 2.0**-50 * (left + right + far)
    if gap > doubt:
        return False
    if gap < -doubt:
        return True
    ah, al = linear_sum(na, base, ra, ulp)
    bh, bl = linear_sum(nb, base, rb, ulp)
    return merges(ah, al, na, bh, bl, nb, c)


@inline
def _runs(words, shift, run_of, keys, starts):
    """Runs of equal weights: the run of each word, the low bits and first word of each run; returns their
    number."""
    u = 0
    previous = words[0] >> shift
    keys[0], starts[0] = np.int32(previous), 0
    for t in range(words.size):
        r = words[t] >> shift
        u += r != previous
        previous = r
        keys[u] = np.int32(r)
        starts[u + 1] = t + 1
        run_of[t] = u
    return u + 1


@inline
def _any_meet(keys, starts, runs, reach):
    """Whether some neighbouring runs merge; if none do, pooling has nothing to do."""
    meet = False
    generous = reach * (1.0 + 2.0**-50)
    for u in range(1, runs):
        meet |= np.float64(keys[u] - keys[u - 1]) <= generous * np.float64(starts[u + 1] - starts[u - 1])
    return meet


@inline
def _pool_runs(keys, starts, runs, reach, base, ulp, c, heads, sums):
    """Pool runs from left to right (identity 1); ``heads`` are the first runs of the clusters."""
    top = -1
    for u in range(runs):
        head, end = u, starts[u + 1]
        n = np.int64(end - starts[u])
        total = n * np.int64(keys[u])
        while top >= 0:
            m = np.int64(starts[head] - starts[heads[top]])
            if not _merge_rule(sums[top], m, total, n, reach, base, ulp, c):
                break
            head = heads[top]
            n += m
            total += sums[top]
            top -= 1
        top += 1
        heads[top], sums[top] = head, total
    heads[top + 1] = runs
    return top + 1


@inline
def _values_of_runs(keys, starts, runs, base, ulp, turn, c, beta, scale, values):
    """Values when every run is a cluster; returns (zeros, whether all are beyond doubt)."""
    zeros = 0
    sure = True
    for u in range(runs):
        both = starts[u] + starts[u + 1]
        value, zeroed, certain = quick32(base + ulp * keys[u], c * (turn - both), beta, scale)
        values[u] = value + np.float32(0.0)
        zeros += zeroed * (starts[u + 1] - starts[u])
        sure &= certain
    return zeros, sure


@inline
def _pool_bucket(words, first, rank, d, c, beta, scale, scratch, sums, values, results, ends, mark):
    """Pool one sorted bucket, store each weight's value at its place of arrival; return its zeros and
    clusters.

    ``first`` is the bucket's first key, ``rank`` how many weights lie in lower buckets. The values are
    final unless a
    cluster reaches over the bucket's edge, which ``ends`` (count and sum of low bits of the first and the
    last
    cluster) lets ``merge`` find out.
    """
    size = words.size
    b = place_bits(size)
    shift, mask = words.dtype.type(b), words.dtype.type((1 << b) - 1)
    base, ulp = decode(np.int64(first)), cell_ulp(np.int64(first))
    run_of, keys, starts, heads = scratch[0], scratch[1], scratch[2], scratch[3]
    runs = _runs(words, shift, run_of, keys, starts)
    turn = np.float64(d - 2 * rank)
    reach = c / ulp
    clusters = runs
    zeros, sure = 0, False
    apart = not _any_meet(keys, starts, runs, reach)
    if apart:
        zeros, sure = _values_of_runs(keys, starts, runs, base, ulp, turn, c, beta, scale, values)
    if not sure:
        zeros = 0
        clusters = _pool_runs(keys, starts, runs, reach, base, ulp, c, heads, sums)
        for g in range(clusters):
            i, j = starts[heads[g]], starts[heads[g + 1]]
            sh, sl = linear_sum(j - i, base, sums[g], ulp)
            value, zeroed = value32(sh, sl, np.int64(j - i), c, turn - (i + j), beta, scale)
            zeros += zeroed * (j - i)
            for u in range(heads[g], heads[g + 1]):
                values[u] = value
            words[i] |= words.dtype.type(mark)
        for t in range(size):
            results[words[t] & mask] = values[run_of[t]]
        ends[0], ends[1] = starts[heads[1]], sums[0]
        ends[2], ends[3] = size - starts[heads[clusters - 1]], sums[clusters - 1]
        return zeros, clusters
    for t in range(size):
        results[words[t] & mask] = values[run_of[t]]
    for u in range(runs):
        words[starts[u]] |= words.dtype.type(mark)
    ends[0], ends[1] = starts[1], np.int64(starts[1]) * keys[0]
    last = np.int64(size - starts[runs - 1])
    ends[2], ends[3] = last, last * keys[runs - 1]
    return zeros, runs


@kernel
def pool_buckets(
    some,
    firsts,
    counts,
    rank,
    offset,
    place_of,
    words,
    d,
    c,
    beta,
    scale,
    scratch,
    sums,
    values,
    results,
    ends,
    mark,
):
    """Step 6: pool the sorted buckets ``some`` one by one; return how many zeros and clusters there are."""
    zeros, clusters = np.int64(0), np.int64(0)
    for b in some:
        lo, hi = offset[b], offset[b] + counts[b]
        part = words[place_of[b] : place_of[b] + counts[b]]
        zeroed, found = _pool_bucket(
            part, firsts[b], rank[b], d, c, beta, scale, scratch, sums, values, results[lo:hi], ends[b], mark
        )
        zeros += zeroed
        clusters += found
    return zeros, clusters
