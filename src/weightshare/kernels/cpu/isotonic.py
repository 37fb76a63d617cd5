"""Isotonic regression: pool-adjacent-violators in tiles of fixed ranks, joined across their boundaries.

Blocks are compared by cross-multiplied sums, S_A n_B >= S_B n_A, ties included, so that pooling needs no
division.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel


@inline
def _pool(y, weights, sign, sums, mass, starts):
    """Blocks of y times ``sign``; returns their number, the largest |y| and the extreme weights."""
    weighted = weights.size > 0
    s, m, start, top = np.float64(y[0]) * sign, 1.0, 0, -1
    most, heavy, light = abs(s), 1.0, 1.0
    if weighted:
        m = np.float64(weights[0])
        s *= m
        heavy = light = m
    for t in range(1, y.size):
        value, w = np.float64(y[t]) * sign, 1.0
        most = max(most, abs(value))
        if weighted:
            w = np.float64(weights[t])
            heavy, light = max(heavy, w), min(light, w)
            value *= w
        if s * w < value * m:
            top += 1
            sums[top], mass[top], starts[top] = s, m, start
            s, m, start = value, w, t
            continue
        s += value
        m += w
        while top >= 0 and sums[top] * m >= s * mass[top]:
            s += sums[top]
            m += mass[top]
            start = starts[top]
            top -= 1
    top += 1
    sums[top], mass[top], starts[top] = s, m, start
    starts[top + 1] = y.size
    return top + 1, most, heavy, light


@inline
def _fill(sums, mass, starts, blocks, sign, out, heads):
    """Write every block's mean and mark its first place."""
    heads[:] = False
    for g in range(blocks):
        value = sums[g] / mass[g] * sign + 0.0
        for t in range(starts[g], starts[g + 1]):
            out[t] = value
        heads[starts[g]] = True


@kernel
def isotonic_tile(y, weights, sign, sums, mass, starts, out, heads, extremes):
    """Step 6: one tile by itself.

    ``extremes`` receives the largest |y sign| and the largest and the smallest weight.
    """
    blocks, extremes[0], extremes[1], extremes[2] = _pool(y, weights, sign, sums, mass, starts)
    _fill(sums, mass, starts, blocks, 1.0, out, heads)


@inline
def _mass(weights, lo, hi):
    """Total weight of places [lo, hi)."""
    if weights.size == 0:
        return np.float64(hi - lo)
    total = 0.0
    for t in range(lo, hi):
        total += weights[t]
    return total


@inline
def _block_before(out, weights, heads, end, known, top):
    """The block that ends at ``end``: start, sum, mass, whether it is the last one ``known``."""
    if top >= 0 and np.int64(known[top, 1]) == end:
        return np.int64(known[top, 0]), known[top, 2], known[top, 3], True
    start = end - 1
    while not heads[start]:
        start -= 1
    m = _mass(weights, start, end)
    return start, out[start] * m, m, False


@inline
def _block_after(out, weights, heads, start, limit):
    """The block that starts at ``start``, in the tile that ends at ``limit``: end, sum, mass."""
    end = start + 1
    while end < limit and not heads[end]:
        end += 1
    m = _mass(weights, start, end)
    return end, out[start] * m, m


@kernel
def join_blocks(out, weights, heads, tile, known):
    """Step 7: pool across tile boundaries from left to right; return how many blocks are ``known`` then.

    Rows of ``known`` (start, end, sum, mass) are the blocks made here, whose values are still to be written.
    """
    top = -1
    for p in range(tile, out.size, tile):
        limit = min(p + tile, out.size)
        lo = p
        hi, s, m = _block_after(out, weights, heads, p, limit)
        left, ls, lm, is_known = _block_before(out, weights, heads, lo, known, top)
        while True:
            if lo > 0 and ls * m >= s * lm:
                heads[lo] = False
                s, m, lo = s + ls, m + lm, left
                top -= is_known
                if lo > 0:
                    left, ls, lm, is_known = _block_before(out, weights, heads, lo, known, top)
                continue
            if lo == p or hi == limit:
                break
            end, rs, rm = _block_after(out, weights, heads, hi, limit)
            if s * rm < rs * m:
                break
            heads[hi] = False
            s, m, hi = s + rs, m + rm, end
        if lo < p:
            top += 1
            known[top, 0], known[top, 1], known[top, 2], known[top, 3] = lo, hi, s, m
    return top + 1


@kernel
def rescale(out, known, lo, hi, factor):
    """Step 8: write the means of known blocks into places [lo, hi), and undo scale and sign there."""
    k = np.searchsorted(known[:, 1], np.float64(lo), side="right")
    while k < known.shape[0] and known[k, 0] < hi:
        value = known[k, 2] / known[k, 3]
        for t in range(max(lo, np.int64(known[k, 0])), min(hi, np.int64(known[k, 1]))):
            out[t] = value
        k += 1
    if factor != 1.0:
        for t in range(lo, hi):
            out[t] = out[t] * factor + 0.0


@kernel
def isotonic_rows_kernel(y, weights, sign, out, heads, extremes):
    """Steps 6 and 8: every row by itself."""
    n = y.shape[1]
    sums, mass, starts = np.empty(n), np.empty(n), np.empty(n + 1, np.int64)
    for r in range(y.shape[0]):
        blocks, most, heavy, light = _pool(y[r], weights[r], sign, sums, mass, starts)
        extremes[0] = max(extremes[0], most)
        extremes[1] = max(extremes[1], heavy)
        extremes[2] = min(extremes[2], light)
        _fill(sums, mass, starts, blocks, 1.0, out[r], heads[r])
