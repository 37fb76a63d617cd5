"""Optimal 1-D k-means of one vector: exact for up to 65,536 distinct values, within a bound for more.

The dynamic programming is that of Wang and Song (2011), with divide and conquer for each row of its table:
O(k n log n) time and O(k n) memory for n distinct values. Longer vectors are cut into at most 65,536 bins of
neighbouring values, none wider than 1/M of the range nor heavier than 1/M of the weights (M = 21,845) unless
it is a single value, and the bins are clustered in the same way. Against the best clustering of the values,
only bins that hold one of its boundaries lose: moving the lighter part of a bin across a boundary between
centres c < c' costs at most (c' - c) times the bin's width times its mass, and the centres' distances add up
to no more than the range. So the mean squared error exceeds the least possible by at most (range / M)^2.
What follows, Lloyd's rounds on the values themselves, only lowers it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightshare.kernels.cpu import kmeans as kernels
from weightshare.metrics import value_counts

Array = np.ndarray[Any, Any]

BINS = 1 << 16
FINENESS = BINS // 3  # cuts for width and for mass together make at most 3 M + 1 bins
_ROUNDS = 16
_CHUNK = 1 << 22
_TABLE = 1 << 32


def cluster_(w: Tensor, k: int, keep_zeros: bool = False) -> None:
    """Replace every weight by the mean of its cluster, of ``k`` at most; zeros can be one of them as such.

    >>> w = torch.tensor([0.0, 5.0, 1.0, 5.0, 6.5])
    >>> cluster_(w, 2)
    >>> w
    tensor([0.5000, 5.5000, 0.5000, 5.5000, 5.5000])
    """
    values, counts = value_counts(w)
    if len(values) <= k:
        return
    if keep_zeros:
        other = values != 0
        k -= int(not other.all())
        values, counts = values[other], counts[other]
    centres, starts = centres_of(values, counts, k) if k else (np.zeros(1), np.zeros(0))
    _assign_(w, centres, starts, keep_zeros)


def centres_of(values: Array, counts: Array, k: int) -> tuple[Array, Array]:
    """The means of the ``k`` clusters of sorted distinct values, and the first values of all but the first.

    >>> centres_of(np.array([0.0, 1.0, 5.0, 6.5]), np.array([1, 1, 2, 1]), 2)
    (array([0.5, 5.5]), array([5.]))
    """
    if len(values) <= k:
        return values.astype(np.float64), values[1:].astype(np.float64)
    n = min(len(values), BINS)
    if k * n * 4 > _TABLE:
        raise ValueError(
            f"k-means of {n:,} values into {k} clusters needs {k * n * 4 / 2**30:.0f} GiB; "
            f'use fewer clusters or shorter vectors (per="row")'
        )
    if len(values) <= BINS:
        edges = kernels.segments(values.astype(np.float64), counts.astype(np.float64), k)
    else:
        edges = _settled(values, counts, _binned(values, counts, k))
    return _means(values, counts, edges)[0], values[edges[1:]].astype(np.float64)


def _means(values: Array, counts: Array, starts: Array) -> tuple[Array, Array]:
    mean, mass = np.empty(len(starts)), np.empty(len(starts))
    kernels.means(values, counts, starts, mean, mass)
    return mean, mass


def _binned(values: Array, counts: Array, k: int) -> Array:
    """Where the segments of the best clustering of bins begin among the values."""
    starts = np.empty(BINS, dtype=np.int64)
    width = (float(values[-1]) - float(values[0])) / FINENESS
    bins = kernels.bin_starts(values, counts, width, counts.sum() / FINENESS, starts)
    starts = starts[:bins]
    return starts[kernels.segments(*_means(values, counts, starts), k)] if bins > k else starts


def _settled(values: Array, counts: Array, starts: Array) -> Array:
    """Lloyd's rounds: each value to the nearest mean, until nothing moves (or a cluster would be empty)."""
    for _ in range(_ROUNDS):
        mean, _ = _means(values, counts, starts)
        edges = np.r_[0, np.searchsorted(values, (mean[1:] + mean[:-1]) / 2)]
        if np.array_equal(edges, starts) or len(np.unique(edges)) < len(edges) or edges[-1] == len(values):
            break
        starts = edges
    return starts


def _assign_(w: Tensor, centres: Array, starts: Array, keep_zeros: bool) -> None:
    """Every weight lies between the values that begin and end its segment."""
    table, bounds = torch.from_numpy(centres).to(w), torch.from_numpy(starts).to(w.device)
    for part in torch.split(w.view(-1), _CHUNK):
        means = table[torch.bucketize(part.to(torch.float64), bounds, right=True)]
        part.copy_(means.where(part != 0, 0.0) if keep_zeros else means)
