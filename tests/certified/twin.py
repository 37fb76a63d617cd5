"""The obviously right prox: pool-adjacent-violators on the sorted weights in rational arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass
class Exact:
    """Values correctly rounded to float64 and to float32 in the original order, first rank of each cluster,
    cluster of each weight."""

    values: np.ndarray
    singles: np.ndarray
    starts: list[int]
    ids: np.ndarray
    zeros: int


def nearest32(value: Fraction) -> np.float32:
    """The float32 nearest to a rational number, ties to even: in one rounding, not by way of float64."""
    with np.errstate(over="ignore"):
        near = np.float32(float(value))
    if not np.isfinite(near):
        return near
    around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def exact_prox(w, alpha: float, beta: float = 0.0, scale: float = 1.0) -> Exact:
    """Algorithm 2 on exact numbers; c = alpha / (d - 1) rounded to float64 is part of the problem's
    statement."""
    w = np.asarray(w, np.float64)
    d = w.size
    c = Fraction(alpha / (d - 1)) if d > 1 else Fraction(0)
    beta, scale = Fraction(beta), Fraction(scale)
    order = np.argsort(w, kind="stable")
    stack: list[tuple[int, int, Fraction]] = []
    for i, value in enumerate(w[order]):
        first, n, total = i, 1, Fraction(float(value))
        while stack and total / n - stack[-1][2] / stack[-1][1] <= c * (n + stack[-1][1]):
            first, m, before = stack.pop()
            n, total = n + m, total + before
        stack.append((first, n, total))
    out, singles = np.empty(d), np.empty(d, np.float32)
    ids, zeros = np.empty(d, np.int64), 0
    for g, (i, n, total) in enumerate(stack):
        x, v = total / n, c * (d - 2 * i - n)
        dest = x + v
        sign = (dest > 0) - (dest < 0)
        zeroed = abs(dest) < beta
        zeros += n * zeroed
        value = Fraction(0) if zeroed else x + scale * (v - beta * sign)
        out[order[i : i + n]], singles[order[i : i + n]] = float(value), nearest32(value)
        ids[order[i : i + n]] = g
    return Exact(out, singles, [i for i, _, _ in stack], ids, zeros)
