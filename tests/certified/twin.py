"""The obviously right prox: pool-adjacent-violators on the sorted weights in rational arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass
class Exact:
    """Values correctly rounded to float64 in the original order, first rank of each cluster, cluster of
    each weight."""

    values: np.ndarray
    starts: list[int]
    ids: np.ndarray
    zeros: int


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
    out, ids, zeros = np.empty(d), np.empty(d, np.int64), 0
    for g, (i, n, total) in enumerate(stack):
        x, v = total / n, c * (d - 2 * i - n)
        dest = x + v
        sign = (dest > 0) - (dest < 0)
        zeroed = abs(dest) < beta
        zeros += n * zeroed
        out[order[i : i + n]] = 0.0 if zeroed else float(x + scale * (v - beta * sign))
        ids[order[i : i + n]] = g
    return Exact(out, [i for i, _, _ in stack], ids, zeros)
