"""The maps on any device, in plain PyTorch: the part of Algorithm 2 around the collisions.

Everything is in float64 and in sorted order. Runs of equal weights are merged before any arithmetic
(they are particles of mass > 1, and equal inputs have equal outputs), so that ties never depend on
rounding. The inputs are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightshare import checks
from weightshare.certified import Info
from weightshare.collisions import Chain, lookup
from weightshare.solution import ZEROED, Solution

# Outside of these, sums could overflow or means lose bits below the smallest number; such rows are solved
# at another size (the maps are homogeneous, and powers of two are exact).
_LARGE, _SHRINK = 2.0**900, 2.0**-200
_SMALL, _GROW = 2.0**-900, 2.0**700
# In a regression values are multiplied by weights, so that both share the range.
_SMALL_WEIGHTED, _WIDEST = 2.0**-300, 2.0**600


@dataclass(frozen=True)
class _Runs:
    """Sorted rows as runs of equal values, all rows one after another."""

    order: Tensor  # the sorting permutation of each row
    value: Tensor
    count: Tensor
    start: Tensor  # place of the run's first weight in its row
    row: Tensor
    offsets: Tensor  # where each row's runs begin

    @classmethod
    def of(cls, w: Tensor) -> _Runs:
        rows, d = w.shape
        x, order = w.sort(dim=1)
        new = torch.ones_like(x, dtype=torch.bool)
        new[:, 1:] = x[:, 1:] != x[:, :-1]
        place = new.reshape(-1).nonzero().squeeze(1)
        stop = torch.full_like(place, rows * d)
        stop[:-1] = place[1:]
        offsets = torch.zeros(rows + 1, dtype=torch.int64, device=w.device)
        offsets[1:] = new.sum(1).cumsum(0)
        value = x.reshape(-1)[place].to(torch.float64)
        return cls(order, value, stop - place, place % d, place // d, offsets)


def prox_rows(w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str) -> Solution:
    """Algorithm 2 for every row of ``w`` (rows, d), with coefficients (rows,) in float64."""
    checks.finite("w", w)
    factor = _resize(w, alpha, beta)
    if factor is None:
        return _prox_rows(w, alpha, beta, scale, algorithm)
    wide = w.to(torch.float64) * factor[:, None]
    resized = _prox_rows(wide, alpha * factor, beta * factor, scale, algorithm)
    return replace(resized, out=(resized.out / factor[:, None]).to(w.dtype))


def _prox_rows(w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str) -> Solution:
    d = w.shape[1]
    runs = _Runs.of(w)
    c = (alpha / max(d - 1, 1))[runs.row]
    # Lines 3 to 5: v falls by 2c from weight to weight; a run of equal weights has the mean of its v.
    # Collisions do not depend on the unit of length. Times d - 1, nothing is divided before they are found,
    # so that particles that just touch are seen to, wherever float64 can hold their destinations.
    mass = runs.count.to(torch.float64)
    y = max(d - 1, 1) * runs.value + alpha[runs.row] * (d - 2 * runs.start - runs.count)
    heads = lookup(algorithm)(Chain(y, mass, runs.offsets)).heads  # line 6
    cluster = heads.cumsum(0) - 1
    row, start, base = runs.row[heads], runs.start[heads], runs.value[heads]
    size = torch.zeros_like(start).index_add_(0, cluster, runs.count)
    shift = torch.zeros_like(base).index_add_(0, cluster, (runs.value - base[cluster]) * mass)
    x = base + shift / size
    v = c[heads] * (d - 2 * start - size)
    sign = torch.sign(x + v)
    zeroed = (x + v).abs() < beta[row]  # line 7
    moved = x + scale[row] * (v - beta[row] * sign)  # lines 8 and 11
    value = torch.where(zeroed, 0.0, moved)  # lines 9 and 10
    value = _monotone(value, row, (scale == 1) | ((scale < 1) & (beta == 0)))
    gate = torch.where(zeroed, ZEROED, sign).to(torch.int8)
    first = torch.searchsorted(row, torch.arange(w.shape[0], device=w.device))
    local = torch.arange(row.numel(), device=w.device) - first[row]
    out, ids, gates = (_scatter(t, size, runs.order) for t in (value.to(w.dtype), local, gate))  # 12, 13
    return Solution(out, ids, gates, Info(algorithm, clusters=row.numel()))


def _resize(w: Tensor, *coefficients: Tensor, small: float = _SMALL) -> Tensor | None:
    """A power of two for each row that keeps its sums in range, or ``None`` if no row needs one."""
    top = torch.zeros((), dtype=torch.float64, device=w.device).expand(w.shape[0])
    if w.dtype == torch.float64:
        top = w.abs().amax(1)
    for coefficient in coefficients:
        top = torch.maximum(top, coefficient)
    if w.dtype != torch.float64:
        top = top.clamp(min=1.0)  # sums of the other dtypes are in the middle of float64's range
    factor = torch.ones_like(top).masked_fill_(top > _LARGE, _SHRINK).masked_fill_(top < small, _GROW)
    return None if bool((factor == 1).all()) else factor


def _monotone(value: Tensor, row: Tensor, ordered: Tensor) -> Tensor:
    """Lift values that rounding has put below their left neighbour's, in rows that are ``ordered``.

    Exact values increase from cluster to cluster in a prox, and under rewinding without l1; there a fall
    can only be in the last place. (With l1, rewinding may put a weight that was kept below a zero.)
    """
    shift = 1
    inside = (row[1:] == row[:-1]) & ordered[row[1:]]
    if not bool((inside & (value[1:] < value[:-1])).any()):
        return value
    while shift < value.numel():  # a running maximum, in log steps
        inside = (row[shift:] == row[:-shift]) & ordered[row[shift:]]
        lifted = value.clone()
        lifted[shift:] = torch.where(inside, torch.maximum(value[shift:], value[:-shift]), value[shift:])
        value, shift = lifted, 2 * shift
    return value


def _scatter(per_cluster: Tensor, size: Tensor, order: Tensor) -> Tensor:
    """Lines 12 and 13 of Algorithm 2: repeat each cluster's entry, undo the sort."""
    flat = per_cluster.repeat_interleave(size, output_size=order.numel())
    return torch.empty_like(order, dtype=per_cluster.dtype).scatter_(1, order, flat.view(order.shape))


def isotonic_rows(y: Tensor, weights: Tensor, algorithm: str) -> Solution:
    """Isotonic regression (Eq. 6) of every row of ``y`` with positive ``weights``; the gate is unused."""
    factor = _resize(y, small=_SMALL_WEIGHTED)
    if factor is None:
        return _isotonic_rows(y, weights, algorithm)
    resized = _isotonic_rows(y * factor[:, None], weights, algorithm)
    return replace(resized, out=resized.out / factor[:, None])


def _proportions(weights: Tensor) -> Tensor:
    """Only the proportions of the weights matter: take a power of two out of each row, so that sums stay
    away from overflow and underflow."""
    heavy, light = weights.amax(1, keepdim=True), weights.amin(1, keepdim=True)
    if bool((heavy / light > _WIDEST).any()):
        raise ValueError(
            f"weights of one vector may differ by a factor of {_WIDEST:.3g} at most, "
            f"got {float(light.min())} and {float(heavy.max())}"
        )
    return weights * (torch.frexp(heavy).mantissa / heavy).clamp(max=2.0**1000)


def _isotonic_rows(y: Tensor, weights: Tensor, algorithm: str) -> Solution:
    rows, d = y.shape
    flat = y.to(torch.float64).reshape(-1)
    mass = _proportions(weights.to(torch.float64)).reshape(-1)
    offsets = torch.arange(0, (rows + 1) * d, d, device=y.device)
    heads = lookup(algorithm)(Chain(flat, mass, offsets)).heads
    cluster = heads.cumsum(0) - 1
    base = flat[heads]
    total = torch.zeros_like(base).index_add_(0, cluster, mass)
    value = base + torch.zeros_like(base).index_add_(0, cluster, (flat - base[cluster]) * mass) / total
    row = heads.nonzero().squeeze(1) // d
    value = _monotone(value, row, torch.ones(rows, dtype=torch.bool, device=y.device))
    ids = cluster.view(rows, d) - cluster.view(rows, d)[:, :1]
    out = value[cluster].to(y.dtype).view(rows, d)
    gate = torch.empty(0, dtype=torch.int8, device=y.device)
    return Solution(out, ids, gate, Info(algorithm, clusters=row.numel()))
