"""float64: partition by splitters taken from a sample, whatever the distribution, and the replay of it."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import kernel, prefetch

AHEAD = 12


@kernel
def classify(w, splitters, bucket, counts):
    """Step 2: bucket of every weight: how many splitters are <= it; the number of splitters is 2^k - 1."""
    half = (splitters.size + 1) // 2
    for i in range(w.size):
        at = np.uint64(0)
        step = np.uint64(half)
        while step > np.uint64(0):
            at += step * np.uint64(w[i] >= splitters[at + step - np.uint64(1)])
            step >>= np.uint64(1)
        bucket[i] = at
        counts[at] += 1


@kernel
def scatter_values(w, bucket, cursor, values):
    """Step 5: append every weight to its bucket's stretch of ``values``; -0.0 becomes 0.0."""
    for i in range(w.size):
        b = np.uint64(bucket[i])
        values[np.uint64(cursor[b])] = w[i] + 0.0
        cursor[b] += 1


@kernel
def replay_values(bucket, cursor, results, out):
    """Step 8: the next result of each weight's bucket, in order of arrival."""
    for i in range(bucket.size):
        b = np.uint64(bucket[i])
        place = cursor[b]
        prefetch(results, place + AHEAD)
        out[i] = results[np.uint64(place)]
        cursor[b] = place + 1
