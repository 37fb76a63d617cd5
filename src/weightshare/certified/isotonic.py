"""Isotonic regression of long vectors on all threads, and of rows in parallel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.kernels.cpu import isotonic as kernels
from weightshare.kernels.threads import run, split

LEAST_TILE = 1 << 14
MOST_TILES = 64
BLOCK = 1 << 16  # values of a task of rows
SAFE = 1e70  # weights and values within these bounds cannot overflow a product of sums
NOTHING = np.empty(0)


@dataclass
class IsotonicResult:
    """The regression, and where its blocks begin (``heads`` has the shape of ``out``)."""

    out: NDArray[Any]
    heads: NDArray[np.bool_]

    @property
    def starts(self) -> NDArray[np.int64]:
        """First places of the blocks of a vector."""
        return np.flatnonzero(self.heads)


def isotonic_array(
    y: NDArray[Any],
    weights: NDArray[Any] | None = None,
    out: NDArray[Any] | None = None,
    *,
    increasing: bool = True,
    threads: int = 1,
) -> IsotonicResult:
    """argmin sum weights (u - y)^2 over nondecreasing (or nonincreasing) u, for one vector.

    Tiles of fixed places are pooled on all threads and joined where they meet, so the result is bitwise
    the same
    for any number of threads. ``y`` is float64 or float32 and finite, weights are positive; ``out`` may be
    ``y``.

    >>> isotonic_array(np.array([1.0, 3.0, 2.0, 4.0])).out
    array([1. , 2.5, 2.5, 4. ])
    """
    out = np.empty_like(y) if out is None else out
    heads = np.empty(y.size, np.bool_)
    if not y.size:
        return IsotonicResult(out, heads)
    mass = NOTHING if weights is None else np.ascontiguousarray(weights, np.float64)
    target = out if out.dtype == np.float64 and out is not y else np.empty(y.size)
    sign = 1.0 if increasing else -1.0
    tile = _tile(y, sign)
    extremes = _tiles(y, mass, sign, target, heads, tile, threads)
    factor, mass, again = _safe_factor(extremes, mass)
    if again:
        _tiles(y, mass, sign * factor, target, heads, tile, threads)
    known = np.empty((MOST_TILES + 2, 4))
    known = known[: kernels.join_blocks(target, mass, heads, tile, known)]
    undo = sign / factor
    if known.size or undo != 1.0:
        cuts = split(y.size, 1 if threads == 1 else 4 * threads)
        run([partial(kernels.rescale, target, known, lo, hi, undo) for lo, hi in cuts], threads)
    if target is not out:
        out[...] = target
    return IsotonicResult(out, heads)


def isotonic_rows(
    y: NDArray[Any],
    weights: NDArray[Any] | None = None,
    out: NDArray[Any] | None = None,
    *,
    increasing: bool = True,
    threads: int = 1,
) -> IsotonicResult:
    """``isotonic_array`` of every row of a contiguous matrix, rows in parallel.

    >>> isotonic_rows(np.array([[2.0, 1.0], [1.0, 2.0]]), increasing=False).out
    array([[2. , 1. ],
           [1.5, 1.5]])
    """
    out = np.empty_like(y) if out is None else out
    heads = np.empty(y.shape, np.bool_)
    rows = y.shape[0]
    if not y.size:
        return IsotonicResult(out, heads)
    mass = np.empty((rows, 0)) if weights is None else np.ascontiguousarray(weights, np.float64)
    sign = 1.0 if increasing else -1.0
    lots = split(rows, min(rows, max(threads, math.ceil(y.size / BLOCK))))
    extremes = np.tile([0.0, 0.0, np.inf], (len(lots), 1))

    target = np.empty_like(y) if np.may_share_memory(y, out) else out

    def pool(factor: float) -> None:
        def lot(k: int, lo: int, hi: int) -> None:
            part = (y[lo:hi], mass[lo:hi], sign * factor)
            kernels.isotonic_rows_kernel(*part, target[lo:hi], heads[lo:hi], extremes[k])

        run([partial(lot, k, lo, hi) for k, (lo, hi) in enumerate(lots)], threads)

    pool(1.0)
    worst = np.array([extremes[:, 0].max(), extremes[:, 1].max(), extremes[:, 2].min()])
    factor, mass, again = _safe_factor(worst, mass)
    if again:
        pool(factor)
    if sign / factor != 1.0:
        np.multiply(target, sign / factor, out=target)
        target += y.dtype.type(0.0)  # -0.0 is 0.0
    if target is not out:
        out[...] = target
    return IsotonicResult(out, heads)


def _tile(y: NDArray[Any], sign: float) -> int:
    """Length of a tile: a function of the input alone, so that threads do not change the rounding.

    Where the values fall by more than their spread, few blocks remain and the first ones swallow the rest
    at once:
    one pass from the left is then faster than tiles that know nothing of what lies to their left.
    """
    sample = y[:: max(1, y.size // 4096)].astype(np.float64) * sign
    quarter = max(1, sample.size // 4)
    with np.errstate(over="ignore"):
        fall = sample[:quarter].mean() - sample[-quarter:].mean()
        if fall > sample.std():
            return int(y.size)
    return max(LEAST_TILE, -(-y.size // MOST_TILES))


def _tiles(
    y: NDArray[Any],
    mass: NDArray[np.float64],
    sign: float,
    out: NDArray[np.float64],
    heads: NDArray[np.bool_],
    tile: int,
    threads: int,
) -> NDArray[np.float64]:
    """Pool every tile by itself; returns the largest |y sign|, the largest and the smallest weight."""
    starts = range(0, y.size, tile)
    extremes = np.empty((len(starts), 3))

    def tiles(first: int, last: int) -> None:
        size = min(tile, y.size)
        scratch = (np.empty(size), np.empty(size), np.empty(size + 1, np.int64))
        for k in range(first, last):
            lo, hi = k * tile, min(k * tile + tile, y.size)
            part = (y[lo:hi], mass[lo:hi], sign)
            kernels.isotonic_tile(*part, *scratch, out[lo:hi], heads[lo:hi], extremes[k])

    lots = split(len(starts), 8 * threads)
    run([partial(tiles, lo, hi) for lo, hi in lots], threads)
    return np.array([extremes[:, 0].max(), extremes[:, 1].max(), extremes[:, 2].min()])


def _safe_factor(
    extremes: NDArray[np.float64], mass: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], bool]:
    """Power of two for the values, rescaled weights, and whether products of sums could leave the range
    without."""
    most, heavy, light = (float(v) for v in extremes)
    if most <= SAFE and heavy <= SAFE and light >= 1.0 / SAFE:
        return 1.0, mass, False
    if light < heavy / SAFE:
        raise ValueError(f"weights must lie within {SAFE:g} of each other, got {light:g} and {heavy:g}")
    if mass.size:
        mass = np.ldexp(mass, -math.frexp(heavy)[1])
    return math.ldexp(1.0, -math.frexp(most)[1]) if most > SAFE else 1.0, mass, True
