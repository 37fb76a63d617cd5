"""Lower hull of the bucket boundaries, and the test that retires buckets without sorting them."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import CELL_BITS, cell_ulp, decode
from weightshare.kernels.cpu.numerics import dd_add, linear_sum, merges

EPS = 2.0**-52


@kernel
def bucket_sums(keys, counts, totals, high, low):
    """Step 2: exact sum (double-double) of each bucket from its count and its sum of low key bits."""
    for b in range(keys.size):
        if counts[b] > 0:
            first = (np.int64(keys[b]) >> CELL_BITS) << CELL_BITS
            high[b], low[b] = linear_sum(counts[b], decode(first), totals[b], cell_ulp(first))


@kernel
def pool(counts, high, low, c, first, n, sh, sl):
    """Step 3: pool items (count, sum) from left to right by identity 1; return how many clusters there are.

    The items are buckets, so the clusters are the edges of G, the lower hull of the bucket boundaries.
    Empty items are passed over. ``first``, ``n``, ``sh``, ``sl`` receive the clusters.
    """
    top = -1
    for b in range(counts.size):
        if counts[b] == 0:
            continue
        top += 1
        first[top] = b
        n[top] = counts[b]
        sh[top] = high[b]
        sl[top] = low[b]
        while top > 0 and merges(sh[top - 1], sl[top - 1], n[top - 1], sh[top], sl[top], n[top], c):
            sh[top - 1], sl[top - 1] = dd_add(sh[top - 1], sl[top - 1], sh[top], sl[top])
            n[top - 1] += n[top]
            top -= 1
    return top + 1


@inline
def _retires(n, total, mu, key, width, c, e0, e1, slack):
    """The retire test of one bucket; ``slack`` bounds the rounding in e0 and e1."""
    low = np.int64(key) & ((1 << CELL_BITS) - 1)
    if n == 1 or width == 0 or total == n * low or total == n * (low + (1 << width) - 1):
        return True  # a single value, whatever it is
    lo = decode(np.int64(key))
    hi = decode(np.int64(key) + (1 << width) - 1)
    h = hi - lo
    q = min(max((hi - mu) / h, 0.0), 1.0)
    bound = e0 * (1.0 - q) + e1 * q + n * q * (1.0 - q) * (c * n - h)
    doubt = 3 * slack + 16 * EPS * (abs(e0) + abs(e1) + n * (c * n + h)) * (1.0 + abs(mu) / h)
    return bound >= doubt


@kernel
def retire(counts, totals, high, low, keys, widths, c, clusters, first, n, sh, sl, unresolved):
    """Step 4: mark the buckets whose inner order could matter; return the number of weights in them.

    Inside a cluster of N weights and mean m the height of P over G at a boundary with k weights of the
    cluster before it is e(k) = sum of (x - m) over those + c k (N - k). A bucket of n weights in
    [lo, hi], h = hi - lo, mean mu, q = (hi - mu) / h, is retired iff

        e0 (1 - q) + e1 q + n q (1 - q) (c n - h) >= 0

    evaluated in float64 with a bound on its rounding, so a doubtful bucket stays unresolved.
    """
    left = 0
    for g in range(clusters):
        last = first[g + 1] if g + 1 < clusters else counts.size
        mean = (sh[g] + sl[g]) / n[g]
        before = np.int64(0)
        drift = 0.0
        slack = 0.0
        e0 = spread0 = 0.0
        for b in range(first[g], last):
            k = counts[b]
            if k == 0:
                continue
            mu = (high[b] + low[b]) / k
            drift += k * (mu - mean)
            slack += 4 * EPS * (k * (abs(mu) + abs(mean)) + abs(drift))
            before += k
            spread = c * np.float64(before) * np.float64(n[g] - before)
            e1 = drift + spread
            wobble = slack + 4 * EPS * (spread + spread0 + abs(e0) + abs(e1))
            unresolved[b] = not _retires(k, totals[b], mu, keys[b], widths[b], c, e0, e1, wobble)
            if unresolved[b]:
                left += k
            e0 = e1
            spread0 = spread
    return left
