"""Exact scalar arithmetic: error-free transforms, double-double sums, the merge rule, the value of a cluster.

A cluster carries its sum as an unevaluated pair ``hi + lo`` of float64. Unless the weights span more than
about a
hundred binary orders of magnitude that pair *is* the sum (certified/plan.py tells), so the merge rule
below decides
exactly: a float64 filter first, expansions when the filter cannot tell. Exact decisions make the clusters
a function of the weights alone, whatever the buckets, the order and the number of threads.
"""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import fma, inline

FILTER = 2.0**-50  # eight roundings of 2^-53 each


@inline
def two_sum(a, b):
    """s + e == a + b exactly, s the rounded sum."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@inline
def two_prod(a, b):
    """p + e == a * b exactly (no underflow), p the rounded product."""
    p = a * b
    return p, fma(a, b, -p)


@inline
def dd_add(ah, al, bh, bl):
    """Sum of two double-doubles, exact whenever the result has at most 106 significant bits."""
    s, e = two_sum(ah, bh)
    t, f = two_sum(al, bl)
    s, e = two_sum(s, e + t)
    return two_sum(s, e + f)


@inline
def linear_sum(n, base, total, ulp):
    """n base + total ulp as a double-double: the sum of n weights of one cell, exact (n, total < 2^53)."""
    p, e = two_prod(np.float64(n), base)
    s, f = two_sum(p, np.float64(total) * ulp)
    return two_sum(s, e + f)


@inline
def dd_div(sh, sl, n):
    """(sh + sl) / n as a double-double; exact when the quotient is a float64."""
    q = sh / n
    r = fma(-q, n, sh) + sl
    return two_sum(q, r / n)


@inline
def _grow(parts, used, term):
    """Add one float64 to a non-overlapping expansion in place; return its new length."""
    kept = 0
    for k in range(used):
        term, low = two_sum(term, parts[k])
        if low != 0.0:
            parts[kept] = low
            kept += 1
    if term != 0.0:
        parts[kept] = term
        kept += 1
    return kept


@inline
def _merges_exactly(ah, al, na, bh, bl, nb, c):
    """Sign of S_B n_A - S_A n_B - c n_A n_B (n_A + n_B) <= 0, by a sum of at most sixteen exact terms."""
    wa, wb = np.float64(na), np.float64(nb)
    volume = wa * wb * (wa + wb)
    left, e = two_prod(bh, wa)
    right, f = two_prod(ah, wb)
    reach, g = two_prod(c, volume)
    apart, h = two_sum(left, -right)
    if volume < 2.0**53 and al == 0.0 and bl == 0.0 and e == 0.0 and f == 0.0 and g == 0.0 and h == 0.0:
        return apart <= reach  # nothing was rounded
    parts = np.empty(24)
    used = 0
    for value, factor in ((bh, na), (bl, na), (-ah, nb), (-al, nb)):
        p, e = two_prod(value, np.float64(factor))
        used = _grow(parts, used, e)
        used = _grow(parts, used, p)
    ab, abe = two_prod(np.float64(na), np.float64(nb))
    for part in (ab, abe):
        m, me = two_prod(part, np.float64(na + nb))
        for factor in (m, me):
            p, e = two_prod(-c, factor)
            used = _grow(parts, used, e)
            used = _grow(parts, used, p)
    return used == 0 or parts[used - 1] <= 0.0


@inline
def merges(ah, al, na, bh, bl, nb, c):
    """Identity 1: neighbours A, B merge iff mean_B - mean_A <= c (n_A + n_B), ties included."""
    wa, wb = np.float64(na), np.float64(nb)
    left, right = bh * wa, ah * wb
    reach = c * (wa * wb * (wa + wb))
    gap = left - right - reach
    doubt = FILTER * (abs(left) + abs(right) + reach)
    if gap > doubt:
        return False
    if gap < -doubt:
        return True
    return _merges_exactly(ah, al, na, bh, bl, nb, c)


@inline
def _careful_value(sh, sl, n, c, turn, beta, scale):
    """Algorithm 2 lines 7-12 for one cluster: (value as a double-double, zeroed)."""
    xh, xl = dd_div(sh, sl, np.float64(n))
    vh, vl = two_prod(c, np.float64(turn))
    dh, dl = dd_add(xh, xl, vh, vl)
    sign = 1.0 if dh > 0.0 else (-1.0 if dh < 0.0 else 0.0)
    gap_h, _ = dd_add(sign * dh, sign * dl, -beta, 0.0)
    if gap_h < 0.0:
        return 0.0, 0.0, True
    mh, ml = dd_add(vh, vl, -beta * sign, 0.0)
    ph, pl = two_prod(scale, mh)
    rh, rl = dd_add(xh, xl, ph, pl + scale * ml)
    return rh, rl, False


@inline
def _nearest32(high, low):
    """The float32 nearest to high + low, of which high is the nearest float64: midway, low decides."""
    near = np.float64(np.float32(high))
    other = near + 2.0 * (high - near)
    if low != 0.0 and other != near and np.float64(np.float32(other)) == other:
        near = max(near, other) if low > 0.0 else min(near, other)
    return np.float32(near)


@inline
def value64(sh, sl, n, c, turn, beta, scale):
    """Algorithm 2 lines 7-12 for one cluster in float64, from double-double: (value, zeroed)."""
    high, low, zeroed = _careful_value(sh, sl, n, c, turn, beta, scale)
    return high + low + 0.0, zeroed


@inline
def quick32(x, v, beta, scale):
    """Algorithm 2 lines 7-12 in float64, without branches: (value, zeroed, whether both are beyond doubt).

    ``x`` and ``v`` are the cluster's mean and displacement, each within two roundings.
    """
    dest = x + v
    far = abs(dest)
    doubt = FILTER * (abs(x) + abs(v))
    zeroed = far < beta
    sign = 1.0 if dest > 0.0 else -1.0
    value = 0.0 if zeroed else x + scale * (v - sign * beta)
    slack = 0.0 if zeroed else FILTER * (abs(x) + scale * (abs(v) + beta))
    low = np.float32(value - slack)
    return low, zeroed, (abs(far - beta) > doubt) & (low == np.float32(value + slack))


@inline
def value32(sh, sl, n, c, turn, beta, scale):
    """Algorithm 2 lines 7-12 for one cluster, correctly rounded to float32: (value, zeroed).

    ``turn`` is d - i - j. float64 decides nearly always; when its error could change the float32 or the
    zero mask, double-double does. Rounding a nondecreasing function keeps it nondecreasing, so no two
    clusters can come out in the wrong order.
    """
    value, zeroed, sure = quick32((sh + sl) / n, c * turn, beta, scale)
    if sure:
        return value + np.float32(0.0), zeroed
    high, low, zeroed = _careful_value(sh, sl, n, c, turn, beta, scale)
    return _nearest32(high, low) + np.float32(0.0), zeroed
