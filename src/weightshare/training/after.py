"""Baselines applied once, to a model that is trained already: optimal 1-D k-means and magnitude pruning."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

from weightshare.metrics import value_counts
from weightshare.training import inputs, names
from weightshare.training.baselines import prune_vectors_
from weightshare.training.names import Named
from weightshare.training.rules import Rule, resolve, shared_by_default
from weightshare.training.vectors import Per, change_

_TABLE = 1 << 32


@torch.no_grad()
def prune_(model: nn.Module, zeros: float, select: Any = None, *, per: Per = "tensor") -> None:
    """Set the share ``zeros`` of smallest magnitude in each vector to zero.

    ``select`` and ``per`` are those of :class:`Rule`; left out, the weights of every Linear and Conv.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[0.1, -3.0, 0.2, 1.0]]))
    >>> prune_(model, 0.5)
    >>> model.weight.data
    tensor([[ 0., -3.,  0.,  1.]])
    """
    if not 0.0 <= inputs.number("zeros", zeros) <= 1.0:
        raise ValueError(f"zeros must be in [0, 1], got {zeros}")
    for group in _selected(model, select, per):
        change_(group, per, lambda vector, dim: prune_vectors_(vector, zeros, dim))


@torch.no_grad()
def kmeans_(model: nn.Module, clusters: int, select: Any = None, *, per: Per = "tensor") -> None:
    """Replace every weight by the mean of its cluster, for the clusters of least squared error.

    Exact, by dynamic programming over the sorted distinct values (as Wang and Song 2011 do, with divide
    and conquer for each row of the table): O(k n log n) time and O(k n) memory for n distinct values in a
    vector.

    >>> import torch
    >>> model = torch.nn.Linear(5, 1)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[0.0, 5.0, 1.0, 5.0, 6.5]]))
    >>> kmeans_(model, 2)
    >>> model.weight.data
    tensor([[0.5000, 5.5000, 0.5000, 5.5000, 5.5000]])
    """
    inputs.whole("clusters", clusters, least=1)

    def change(vector: Tensor, dim: int | None) -> None:
        for row in [vector] if dim is None else vector.unbind(1 - dim):
            _cluster_(row, clusters)

    for group in _selected(model, select, per):
        change_(group, per, change)


def _selected(model: nn.Module, select: Any, per: Per) -> list[list[Tensor]]:
    names.check_module(model)
    parameters = list(model.parameters())
    rule = Rule(shared_by_default(model, parameters) if select is None else select, alpha=0.0, per=per)
    chosen: list[Named] = resolve([rule], model, parameters)[0]
    tensors = [p.tensor.detach() for p in chosen]
    return [tensors] if per == "group" else [[t] for t in tensors]


def _cluster_(w: Tensor, k: int) -> None:
    values, counts = value_counts(w)
    n = len(values)
    if n <= k:
        return
    if k * n * 4 > _TABLE:
        raise ValueError(
            f"k-means of {n:,} distinct values into {k} clusters needs {k * n * 4 / 2**30:.0f} GiB; "
            f'use fewer clusters or shorter vectors (per="row")'
        )
    x = values.astype(np.float64)
    edges = segments(x, counts.astype(np.float64), k)
    centres = np.add.reduceat(x * counts, edges) / np.add.reduceat(counts, edges)
    # Every weight lies between the values that begin and end its segment.
    starts = torch.from_numpy(x[edges[1:]]).to(w.device)
    index = torch.bucketize(w.to(torch.float64), starts, right=True)
    w.copy_(torch.from_numpy(centres).to(w.device)[index])


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def segments(x: np.ndarray, counts: np.ndarray, k: int) -> np.ndarray:
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


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _one_more(
    best: np.ndarray, mass: np.ndarray, first: np.ndarray, second: np.ndarray, begin: np.ndarray
) -> np.ndarray:
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
