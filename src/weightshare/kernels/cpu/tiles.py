"""A sorted float64 vector pooled in tiles of fixed ranks, then joined: the same for any number of threads.

``heads[t]`` says whether a cluster begins at rank t. Sums are taken again from the weights when needed.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.numerics import dd_add, merges, value64
from weightshare.kernels.cpu.rows import pool_sorted


@kernel
def pool_tile(x, c, starts, sh, sl, heads):
    """Step 6: pool one tile by itself (identity 2: what it joins stays joined)."""
    k = pool_sorted(x, c, starts, sh, sl)
    heads[:] = False
    for g in range(k):
        heads[starts[g]] = True


@inline
def _sum(x, lo, hi):
    """Sum of x[lo:hi] in double-double."""
    high, low = 0.0, 0.0
    for t in range(lo, hi):
        high, low = dd_add(high, low, x[t], 0.0)
    return high, low


@inline
def _before(x, heads, end, known, top):
    """The cluster that ends at rank ``end``: start, sum, whether it is the last one ``known``."""
    if top >= 0 and np.int64(known[top, 1]) == end:
        return np.int64(known[top, 0]), known[top, 2], known[top, 3], True
    start = end - 1
    while not heads[start]:
        start -= 1
    high, low = _sum(x, start, end)
    return start, high, low, False


@inline
def _after(x, heads, start, limit):
    """The cluster that starts at rank ``start``, in the tile that ends at ``limit``: end, sum."""
    end = start + 1
    while end < limit and not heads[end]:
        end += 1
    high, low = _sum(x, start, end)
    return end, high, low


@kernel
def join_tiles(x, heads, tile, c, known):
    """Step 7: pool across tile boundaries from left to right, absorbing only what merges.

    ``known`` rows (start, end, sum) remember the clusters made here, which may be too long to sum again.
    """
    top = -1
    for p in range(tile, x.size, tile):
        limit = min(p + tile, x.size)
        lo = p
        hi, sh, sl = _after(x, heads, p, limit)
        left, lh, ll, is_known = _before(x, heads, lo, known, top)
        while True:
            if lo > 0 and merges(lh, ll, lo - left, sh, sl, hi - lo, c):
                heads[lo] = False
                sh, sl = dd_add(lh, ll, sh, sl)
                lo = left
                top -= is_known
                if lo > 0:
                    left, lh, ll, is_known = _before(x, heads, lo, known, top)
                continue
            if lo == p or hi == limit:
                break
            end, rh, rl = _after(x, heads, hi, limit)
            if not merges(sh, sl, hi - lo, rh, rl, end - hi, c):
                break
            heads[hi] = False
            sh, sl = dd_add(sh, sl, rh, rl)
            hi = end
        if lo < p:
            top += 1
            known[top, 0], known[top, 1], known[top, 2], known[top, 3] = lo, hi, sh, sl


@kernel
def write_clusters(x, heads, lo, hi, edges, place, c, beta, scale, results):
    """Step 8: values of the clusters that begin in ranks [lo, hi), at their weights' places of arrival.

    ``place`` counts from the first rank of the weight's bucket (``edges``); returns the zeroed weights'
    number.
    """
    d = x.size
    zeros = 0
    i = lo
    b = np.searchsorted(edges, lo, side="right") - 1
    while i < hi:
        if not heads[i]:
            i += 1
            continue
        j, sh, sl = _after(x, heads, i, d)
        value, zeroed = value64(sh, sl, j - i, c, np.float64(d - i - j), beta, scale)
        zeros += zeroed * (j - i)
        for t in range(i, j):
            while t >= edges[b + 1]:
                b += 1
            results[edges[b] + place[t]] = value
        i = j
    return zeros


@kernel
def list_tiles(x, starts, c, beta, scale, sums, means, values):
    """Step 7: sum, mean and value of every cluster."""
    d = x.size
    for g in range(starts.size):
        i, j = starts[g], starts[g + 1] if g + 1 < starts.size else d
        sh, sl = _sum(x, i, j)
        sums[g] = sh + sl
        means[g] = (sh + sl) / (j - i)
        values[g], _ = value64(sh, sl, j - i, c, np.float64(d - i - j), beta, scale)
