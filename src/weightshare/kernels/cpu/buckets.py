"""Unresolved buckets, one at a time in cache: words that sort with their place of arrival, and pooling.

A word is (key - first key of the bucket) * 2^b + place of arrival, b bits for the place. Sorting the words sorts the
weights and keeps for each where its result belongs, so no value is ever searched for. The top bit of
a sorted word marks the first weight of a cluster.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import cell_ulp, decode
from weightshare.kernels.cpu.numerics import linear_sum, merges, value32


@inline
def place_bits(n):
    """Bits that number n places."""
    b = 0
    while (1 << b) < n:
        b += 1
    return b


@kernel
def make_words(keys, base, words):
    """Words of one bucket from its keys in order of arrival (may be done in place)."""
    b = place_bits(keys.size)
    for j in range(keys.size):
        words[j] = ((keys[j] - base) << b) | j


@inline
def _merge_rule(ra, na, rb, nb, reach, base, ulp, c):
    """Identity 1 inside a bucket: integer sums of low bits, exact for singletons, filtered otherwise.

    ``reach`` is c / ulp, so that the comparison is in units of the last place.
    """
    mean_a = np.float64(ra) / na
    mean_b = np.float64(rb) / nb
    far = reach * (na + nb)
    gap = mean_b - mean_a - far
    doubt = 2.0**-50 * (mean_a + mean_b + far)
    if gap > doubt:
        return False
    if gap < -doubt:
        return True
    ah, al = linear_sum(na, base, ra, ulp)
    bh, bl = linear_sum(nb, base, rb, ulp)
    return merges(ah, al, na, bh, bl, nb, c)


@kernel
def pool_bucket(words, key, rank, d, c, beta, scale, starts, sums, results, ends, mark):
    """Pool one sorted bucket, store every weight's value at its place of arrival; return (clusters, zeros).

    ``rank`` is how many weights lie in lower buckets. The values are final unless a cluster reaches over
    the bucket's edge, which ``ends`` (count and sum of the first and the last cluster) lets ``merge`` find.
    """
    size = words.size
    b = place_bits(size)
    shift, mask = words.dtype.type(b), words.dtype.type((1 << b) - 1)
    base = decode(np.int64(key))
    ulp = cell_ulp(np.int64(key))
    reach = c / ulp
    pair = np.int64(min(2.0 * reach, 2.0**60))  # floor: the widest gap at which two single weights merge
    top = 0
    starts[0], sums[0], n = 0, np.int64(words[0] >> shift), 1
    for t in range(1, size):
        r = np.int64(words[t] >> shift)
        if n == 1 and r - sums[top] > pair:
            top += 1
            starts[top], sums[top] = t, r
            continue
        begin, total, m = t, r, 1
        while top >= 0 and _merge_rule(sums[top], begin - starts[top], total, m, reach, base, ulp, c):
            begin = starts[top]
            total += sums[top]
            m = t + 1 - begin
            top -= 1
        top += 1
        starts[top], sums[top] = begin, total
        n = m
    clusters = top + 1
    starts[clusters] = size
    zeros = 0
    for g in range(clusters):
        i, j = starts[g], starts[g + 1]
        sh, sl = linear_sum(j - i, base, sums[g], ulp)
        value, zeroed = value32(sh, sl, j - i, c, np.float64(d - 2 * rank - i - j), beta, scale)
        zeros += zeroed * (j - i)
        for t in range(i, j):
            results[words[t] & mask] = value
        words[i] |= words.dtype.type(mark)
    ends[0], ends[1] = starts[1], sums[0]
    ends[2], ends[3] = size - starts[clusters - 1], sums[clusters - 1]
    return clusters, zeros
