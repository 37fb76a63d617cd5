"""Pooling kernels: pool-adjacent-violators, and the merge of pooled halves by their common tangent."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.numerics import dd_add, two_prod


@kernel
def pool_adjacent_violators(y, mass, lo, hi, stack, first):
    """Pool ``y[lo:hi]`` from left to right; returns the number of clusters.

    The stack of clusters lives in the caller's scratch from place ``lo`` on, so that several threads can
    share the arrays: mean, mass, and the sum in two float64 (so that clusters that touch exactly are
    seen to, and a mean does not depend on the order of the collisions).
    """
    top = lo - 1
    for i in range(lo, hi):
        top += 1
        mean = y[i]
        weight = mass[i]
        sum_high, sum_low = two_prod(mean, weight)
        first[top] = i
        while top > lo and stack[top - 1, 0] >= mean:
            top -= 1
            sum_high, sum_low = dd_add(stack[top, 2], stack[top, 3], sum_high, sum_low)
            weight += stack[top, 1]
            mean = (sum_high + sum_low) / weight
        stack[top, 0] = mean
        stack[top, 1] = weight
        stack[top, 2] = sum_high
        stack[top, 3] = sum_low
    return top - lo + 1


@kernel
def pool_rows(y, mass, offsets, row_lo, row_hi, stack, first, heads):
    """Pool rows ``row_lo:row_hi`` one after another and mark their clusters' heads."""
    for r in range(row_lo, row_hi):
        lo = offsets[r]
        k = pool_adjacent_violators(y, mass, lo, offsets[r + 1], stack, first)
        for t in range(lo, lo + k):
            heads[first[t]] = True


@kernel
def prefix_sums(y, mass, lo, hi, base, sums, weights):
    """Prefix sums of ``mass * y`` and ``mass`` over ``[lo, hi)``, at places ``base .. base + hi - lo``.

    Each is carried in two float64 (columns high and low; error-free sums and products), so that a
    difference of two prefixes is good to float64 even when a short cluster follows 10^8 others.
    """
    s, t, m, n = 0.0, 0.0, 0.0, 0.0
    sums[base, 0] = sums[base, 1] = weights[base, 0] = weights[base, 1] = 0.0
    for i in range(lo, hi):
        p, e = two_prod(y[i], mass[i])
        s, t = dd_add(s, t, p, e)
        m, n = dd_add(m, n, mass[i], 0.0)
        at = base + i - lo + 1
        sums[at, 0] = s
        sums[at, 1] = t
        weights[at, 0] = m
        weights[at, 1] = n


@inline
def _mean(i, j, sums, weights):
    """Mean of the places ``i..j-1``."""
    s = (sums[j, 0] - sums[i, 0]) + (sums[j, 1] - sums[i, 1])
    return s / ((weights[j, 0] - weights[i, 0]) + (weights[j, 1] - weights[i, 1]))


@inline
def _head(i, parent):
    """Head of the cluster that holds place ``i`` (union-find with path halving)."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@inline
def _tangent_right(i, middle, stop, parent, end, sums, weights):
    """End of the last right cluster that a cluster from ``i`` would swallow: the tangent from ``i``.

    Bisection over places; a place stands for the cluster that holds it. The right half is pooled, so
    "the next cluster still violates" holds up to some cluster and fails from there on.
    """
    low = middle  # places below low are swallowed; [low, high) is undecided
    high = stop
    while low < high:
        place = (low + high) // 2
        b = _head(place, parent)
        if _mean(i, b, sums, weights) >= _mean(b, end[b], sums, weights):
            low = end[b]
        else:
            high = b
    return low


@kernel
def bridge_merge(lo, middle, stop, parent, end, sums, weights):
    """Merge pooled halves ``[lo, middle)`` and ``[middle, stop)``: find their common tangent.

    Only one new cluster can form, around ``middle``. Its left end is the first cluster that the
    cluster of everything to its right (up to the tangent) still violates. Afterwards the ends are
    stepped outwards while rounding has left a violation.
    """
    a = _head(middle - 1, parent)
    if _mean(a, middle, sums, weights) < _mean(middle, end[middle], sums, weights):
        return
    low = lo
    high = a  # the cluster at a takes part
    while low < high:
        h = _head((low + high) // 2, parent)
        after = end[h]
        j = _tangent_right(after, middle, stop, parent, end, sums, weights)
        if _mean(h, after, sums, weights) >= _mean(after, j, sums, weights):
            high = h
        else:
            low = after
    i = high
    j = _tangent_right(i, middle, stop, parent, end, sums, weights)
    moved = True
    while moved:
        moved = False
        own = _mean(i, j, sums, weights)
        if i > lo:
            h = _head(i - 1, parent)
            if _mean(h, i, sums, weights) >= own:
                i = h
                moved = True
        if not moved and j < stop and own >= _mean(j, end[j], sums, weights):
            j = end[j]
            moved = True
    h = i
    while h < j:  # O(clusters merged): each cluster is swallowed once in its life
        parent[h] = i
        h = end[h]
    end[i] = j


@kernel
def forest_rows(y, mass, offsets, base, row_lo, row_hi, sums, weights):
    """Prefix sums of rows ``row_lo:row_hi``."""
    for r in range(row_lo, row_hi):
        prefix_sums(y, mass, offsets[r], offsets[r + 1], base[r], sums, weights)


@kernel
def pool_tiles(
    y, mass, offsets, base, row_of_tile, first_tile, tile, tile_lo, tile_hi, stack, first, parent, end
):
    """Pool each tile by itself and record its clusters as a forest (``parent``) with ``end`` at heads."""
    for t in range(tile_lo, tile_hi):
        r = row_of_tile[t]
        lo = offsets[r] + (t - first_tile[r]) * tile
        hi = min(lo + tile, offsets[r + 1])
        shift = base[r] - offsets[r]
        k = pool_adjacent_violators(y, mass, lo, hi, stack, first)
        for c in range(lo, lo + k):
            a = first[c]
            b = first[c + 1] if c + 1 < lo + k else hi
            end[a + shift] = b + shift
            for i in range(a, b):
                parent[i + shift] = a + shift


@kernel
def merge_level(base, sizes, row, first, width, lo, hi, parent, end, sums, weights):
    """Merge neighbouring halves of ``width`` places: problems ``lo:hi`` of one level of the tree."""
    for p in range(lo, hi):
        r = row[p]
        start = base[r] + (p - first[r]) * 2 * width
        middle = start + width
        stop = min(start + 2 * width, base[r] + sizes[r])
        if middle < stop:
            bridge_merge(start, middle, stop, parent, end, sums, weights)


@kernel
def mark_heads(parent, offsets, base, heads):
    """A place is a head when it is its own parent."""
    for r in range(base.size):
        shift = base[r] - offsets[r]
        for i in range(offsets[r], offsets[r + 1]):
            heads[i] = parent[i + shift] == i + shift


def scratch(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Stack space for :func:`pool_adjacent_violators`."""
    return np.empty((count, 4)), np.empty(count, dtype=np.int64)
