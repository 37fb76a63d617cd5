"""Optimal 1-D k-means by dynamic programming, and bins for vectors too long for it."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel


@kernel
def bin_starts(x, counts, widest, heaviest, starts):
    """Cut sorted ``x`` into bins no wider and no heavier than given, or of one value; returns how many."""
    bins, first, mass = 0, 0, 0
    starts[0] = 0
    for i in range(x.size):
        if i > first and (x[i] - x[first] > widest or mass + counts[i] > heaviest):
            bins += 1
            starts[bins] = first = i
            mass = 0
        mass += counts[i]
    return bins + 1


@kernel
def means(x, counts, starts, mean, mass):
    """Mean and mass of every segment, as the first value plus the mean deviation: exact for one value."""
    for s in range(starts.size):
        lo = starts[s]
        hi = starts[s + 1] if s + 1 < starts.size else x.size
        total, weight = 0.0, 0.0
        for i in range(lo, hi):
            weight += counts[i]
            total += counts[i] * (np.float64(x[i]) - x[lo])
        mean[s] = x[lo] + total / weight
        mass[s] = weight


@kernel
def segments(x, counts, k):
    """Where the k segments of sorted ``x`` begin that minimise the weighted squared error to their means."""
    n = len(x)
    centre = np.sum(x * counts) / np.sum(counts)
    mass, first, second = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):  # moments of the first i values, about the mean of all
        d = x[i] - centre
        mass[i + 1] = mass[i] + counts[i]
        first[i + 1] = first[i] + counts[i] * d
        second[i + 1] = second[i] + counts[i] * d * d
    best = np.full(n + 1, np.inf)  # least error of the first i values in the segments so far
    best[0] = 0.0
    begins = np.zeros((k, n + 1), dtype=np.int32)
    for q in range(k):
        best = _one_more(best, mass, first, second, begins[q])
    edges, stop = np.zeros(k, dtype=np.int64), n
    for q in range(k - 1, -1, -1):
        stop = begins[q, stop]
        edges[q] = stop
    return edges


@inline
def _one_more(best, mass, first, second, begin):
    """Add a last segment: the best place where it begins never moves left as its end moves right."""
    n = len(best) - 1
    result = np.full(n + 1, np.inf)
    stack = [(1, n, 0, n - 1)]
    while len(stack) > 0:
        lo, hi, left, right = stack.pop()
        if lo > hi:
            continue
        mid = (lo + hi) // 2
        at = left
        for i in range(left, min(right, mid - 1) + 1):
            m, s = mass[mid] - mass[i], first[mid] - first[i]
            error = best[i] + max(second[mid] - second[i] - s * s / m, 0.0)
            if error < result[mid]:
                result[mid], at = error, i
        begin[mid] = at
        stack.append((lo, mid - 1, left, at))
        stack.append((mid + 1, hi, at, right))
    return result
