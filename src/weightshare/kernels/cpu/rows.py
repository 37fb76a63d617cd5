"""Short vectors, one or a batch of rows: sort, pool, write (Algorithm 2), one pass each over a row in
cache."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import kernel
from weightshare.kernels.cpu.keys import decode, key
from weightshare.kernels.cpu.numerics import dd_add, merges, value32, value64


@kernel
def row_words(bits, words):
    """Step 6: key * 2^32 + column of every float32 pattern: sorting these sorts values, with their places."""
    for r in range(bits.shape[0]):
        for i in range(bits.shape[1]):
            words[r, i] = (np.uint64(key(bits[r, i])) << np.uint64(32)) | np.uint64(i)


@kernel
def pool_sorted(x, c, starts, sh, sl):
    """Step 6: pool a sorted vector by identity 1; return the number of clusters.

    ``starts`` gets one more entry, d.
    """
    pair = 2.0 * c * (1.0 + 2.0**-50)  # a wider gap never merges two single weights
    top = 0
    starts[0], sh[0], sl[0] = 0, x[0], 0.0
    for t in range(1, x.size):
        if starts[top] == t - 1 and x[t] - x[t - 1] > pair:
            top += 1
            starts[top], sh[top], sl[top] = t, x[t], 0.0
            continue
        begin, high, low = t, x[t], 0.0
        while top >= 0 and merges(sh[top], sl[top], begin - starts[top], high, low, t + 1 - begin, c):
            high, low = dd_add(sh[top], sl[top], high, low)
            begin = starts[top]
            top -= 1
        top += 1
        starts[top], sh[top], sl[top] = begin, high, low
    starts[top + 1] = x.size
    return top + 1


@kernel
def values_single(starts, sh, sl, k, c, beta, scale, values):
    """Step 6: value of each cluster, correctly rounded to float32; return the number of zeroed weights."""
    d = starts[k]
    zeros = 0
    for g in range(k):
        i, j = starts[g], starts[g + 1]
        value, zeroed = value32(sh[g], sl[g], j - i, c, np.float64(d - i - j), beta, scale)
        values[g] = value
        zeros += zeroed * (j - i)
    return zeros


@kernel
def values_double(starts, sh, sl, k, c, beta, scale, values):
    """Step 6: value of each cluster, from double-double to float64; return the number of zeroed weights."""
    d = starts[k]
    zeros = 0
    for g in range(k):
        i, j = starts[g], starts[g + 1]
        values[g], zeroed = value64(sh[g], sl[g], j - i, c, np.float64(d - i - j), beta, scale)
        zeros += zeroed * (j - i)
    return zeros


@kernel
def unpack(words, x, order):
    """Step 6: sorted words back to sorted values and places."""
    for t in range(words.size):
        x[t] = decode(np.int64(words[t] >> np.uint64(32)))
        order[t] = np.int64(words[t] & np.uint64(0xFFFFFFFF))


@kernel
def place_values(starts, k, order, values, out):
    """Step 8: repeat each cluster's value over its weights, in the original order."""
    for g in range(k):
        for t in range(starts[g], starts[g + 1]):
            out[order[t]] = values[g]


@kernel
def rows_single(words, c, beta, scale, out, found):
    """Steps 6 and 8: every row of sorted words on its own; ``found`` receives its zeros and its clusters."""
    d = words.shape[1]
    x, order = np.empty(d), np.empty(d, np.int64)
    starts, sh, sl, values = np.empty(d + 1, np.int64), np.empty(d), np.empty(d), np.empty(d)
    for r in range(words.shape[0]):
        unpack(words[r], x, order)
        k = pool_sorted(x, c, starts, sh, sl)
        found[r, 0] = values_single(starts, sh, sl, k, c, beta, scale, values)
        found[r, 1] = k
        place_values(starts, k, order, values, out[r])


@kernel
def elementwise(w, beta, scale, out):
    """Step 8 for alpha = 0, every weight on its own: x - scale beta sign(x), zero where |x| < beta.

    Returns the number of zeros.
    """
    zeros = 0
    for i in range(w.size):
        x = np.float64(w[i])
        zeroed = abs(x) < beta
        zeros += 1 if zeroed else 0
        # No branch, so that it is done several at a time. Where x = 0, either it is zeroed, or beta = 0.
        moved = x - np.copysign(scale * beta, x) + 0.0
        out[i] = 0.0 if zeroed else moved
    return zeros


@kernel
def rows_with_clusters(x, order, c, beta, scale, single, values, ids, gate):
    """Steps 6 and 8: value, cluster and gate (sign of x + v; 2 where zeroed) of weights of sorted rows."""
    d = x.shape[1]
    starts, sh, sl, found = np.empty(d + 1, np.int64), np.empty(d), np.empty(d), np.empty(d)
    for r in range(x.shape[0]):
        k = pool_sorted(x[r], c, starts, sh, sl)
        if single:
            values_single(starts, sh, sl, k, c, beta, scale, found)
        else:
            values_double(starts, sh, sl, k, c, beta, scale, found)
        for g in range(k):
            i, j = starts[g], starts[g + 1]
            end = (sh[g] + sl[g]) / (j - i) + c * np.float64(d - i - j)
            side = 2 if abs(end) < beta else (1 if end > 0.0 else (-1 if end < 0.0 else 0))
            for t in range(i, j):
                values[r, order[r, t]] = found[g]
                ids[r, order[r, t]] = g
                gate[r, order[r, t]] = side
