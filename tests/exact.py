"""The reference: exact rational arithmetic, straight from definitions, slow and obvious."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, pairwise

import torch


def isotonic(y: list[Fraction], mass: list[Fraction] | None = None) -> list[Fraction]:
    """The min-max formula: ``x_i = max_{j <= i} min_{k >= i} avg(y_{j:k})``.

    It has nothing in common with pooling, which is what makes it a referee for pooling.
    """
    d = len(y)
    mass = mass or [Fraction(1)] * d
    sums = [Fraction(0), *accumulate(a * m for a, m in zip(y, mass))]
    masses = [Fraction(0), *accumulate(mass)]
    result: list[Fraction | None] = [None] * d
    for j in range(d):
        lowest = None
        for k in reversed(range(j, d)):  # min over k' >= k, extended to the left one by one
            average = (sums[k + 1] - sums[j]) / (masses[k + 1] - masses[j])
            lowest = average if lowest is None else min(lowest, average)
            if result[k] is None or lowest > result[k]:
                result[k] = lowest
    return result  # type: ignore[return-value]


def prox(w, alpha, beta=0, rho=0, step=1, coupling="scaled"):
    """Algorithm 2 with rational numbers. Returns the values (in the order of ``w``) and cluster sizes.

    A value is a pair where the threshold of line 7 is met to the last place: zero, and what it is else.
    """
    w = [Fraction(a) for a in w]
    alpha, beta, rho, step = (Fraction(a) for a in (alpha, beta, rho, step))
    scale = 1 - rho
    if coupling == "scaled":
        alpha, beta = step * alpha, step * beta
    else:
        scale = scale * step
    d = len(w)
    order = sorted(range(d), key=lambda i: w[i])
    x = [w[i] for i in order]
    v = [alpha / max(d - 1, 1) * (d - 2 * i + 1) for i in range(1, d + 1)]
    y = isotonic([a + b for a, b in zip(x, v)])
    result: list = [None] * d
    sizes = []
    i = 0
    while i < d:
        j = i
        while j < d and y[j] == y[i]:
            j += 1
        mean_x, mean_v = sum(x[i:j]) / (j - i), sum(v[i:j]) / (j - i)
        assert mean_x + mean_v == y[i]
        sign = (y[i] > 0) - (y[i] < 0)
        value = mean_x + scale * (mean_v - beta * sign)
        if beta and abs(abs(y[i]) - beta) < Fraction(2) ** -48 * beta:
            value = (Fraction(0), value)  # on the threshold, as far as float64 can tell
        elif abs(y[i]) < beta:
            value = Fraction(0)
        for k in range(i, j):
            result[order[k]] = value
        sizes.append(j - i)
        i = j
    return result, sizes


def misplaced(starts: list[int], w, alpha) -> Fraction:
    """How wrong a partition of the sorted weights is: the largest gap (of exact destinations) between two
    neighbours that it should have merged. (What it should not have merged shows in the values.)"""
    x = sorted(Fraction(a) for a in w)
    d = len(x)
    c = Fraction(alpha) / max(d - 1, 1)
    bounds = [*starts, d]
    means = [sum(x[i:j], Fraction(0)) / (j - i) + c * (d - i - j) for i, j in pairwise(bounds)]
    return max([a - b for a, b in pairwise(means)], default=Fraction(0))


def penalty(w) -> Fraction:
    """R from its definition, over pairs."""
    w = [Fraction(a) for a in w]
    d = len(w)
    return sum((abs(w[i] - w[j]) for i in range(d) for j in range(i)), Fraction(0)) / max(d - 1, 1)


def close(got: torch.Tensor, expected: list[Fraction], scale: float) -> bool:
    """Whether ``got`` is ``expected`` to the rounding of its dtype.

    One unit in the last place of the value itself for what the dtype rounds, and a few units of float64
    (in which everything is computed) at ``scale``, the size of the numbers that went in.
    """
    info = torch.finfo(got.dtype)
    for a, b in zip(got.to(torch.float64).reshape(-1).tolist(), expected, strict=True):
        choices = b if isinstance(b, tuple) else (b,)
        allowed = abs(float(choices[-1])) * info.eps + info.smallest_normal * info.eps + 16 * 2.0**-52 * scale
        if not any(abs(Fraction(a) - one) <= allowed for one in choices):
            return False
    return True
