"""Adversarial inputs: every generator returns (weights, alpha) for a random stream and a rough size."""

from __future__ import annotations

import numpy as np

CELL = 1 << 20  # keys in one cell of the plan, the widest bucket there is


def value_of(key) -> np.ndarray:
    """float32 of monotone keys (0x80000000 is zero)."""
    key = np.asarray(key, np.int64)
    return np.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key).astype(np.uint32).view(np.float32)


def _alpha(r) -> float:
    return float(10.0 ** r.uniform(-6, 1.5))


def gaussian(r, d):
    return r.standard_normal(d), _alpha(r)


def tight_clusters(r, d):
    centres = r.standard_normal(int(r.integers(1, 8)))
    return r.choice(centres, d) + 10.0 ** r.uniform(-7, -2) * r.standard_normal(d), _alpha(r) / 10


def cluster_and_tail(r, d):
    w = 0.1 + 2e-5 * r.standard_normal(d)
    tail = r.random(d) < 0.1
    return np.where(tail, r.standard_normal(d), w), _alpha(r) / 10


def interleaved(r, d):
    gap = 10.0 ** r.uniform(-6, -1)
    n = max(1, d // 2)
    return np.concatenate([np.linspace(0, 1, n), np.linspace(0, 1, n) + gap]), _alpha(r)


def spike_at_zero(r, d):
    w = r.standard_normal(d)
    w[r.random(d) < 0.7] = 0.0
    w[r.random(d) < 0.1] = -0.0
    return w, _alpha(r)


def heavy_tail(r, d):
    return r.standard_cauchy(d) ** 3, _alpha(r)


def outliers(r, d):
    w = r.standard_normal(d)
    w[r.integers(0, d, 2)] = [1e30, -3e37]
    return w, _alpha(r)


def denormals(r, d):
    return r.integers(-40, 40, d) * 1e-45, float(10.0 ** r.uniform(-46, -40))


def wide_range(r, d):
    return r.standard_normal(d) * 10.0 ** r.uniform(-40, 37, d), float(10.0 ** r.uniform(-40, 37))


def geometric(r, d):
    return 2.0 ** (-np.arange(d) * r.uniform(0.01, 2.0)) * r.choice([-1, 1]), _alpha(r)


def one_value(r, d):
    return np.full(d, r.standard_normal()), _alpha(r)


def two_values(r, d):
    return r.choice(r.standard_normal(2), d), _alpha(r)


def from_bf16(r, d):
    bits = r.standard_normal(d).astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32), _alpha(r)


def staircase(r, d):
    """Every comparison is a tie: equal spacing of exactly 2 c."""
    step = 2.0 ** -int(r.integers(4, 12))
    n = 2 ** max(1, int(np.log2(max(d, 2)))) + 1
    return np.arange(n) * step, (n - 1) * step / 2 * r.choice([1.0, 1 + 2e-16, 1 - 1e-16])


def epsilon_staircase(r, d):
    """The paper's worst case for imminent collisions: one half collides only one weight at a time."""
    half = max(1, d // 2)
    eps = 1e-3 / d
    return np.concatenate(
        [np.zeros(half), 1e-4 + 2.0 / d * np.arange(half) + eps * np.arange(half) ** 2]
    ), 1.0


def one_cell(r, d):
    """All keys inside one cell."""
    first = (int(r.integers(0x780, 0x880))) * CELL
    return value_of(first + r.integers(0, CELL, d)), float(10.0 ** r.uniform(-8, 0))


def cell_edges(r, d):
    """First and last keys of neighbouring cells."""
    cells = int(r.integers(0x7E0, 0x820)) + r.integers(0, 4, d)
    return value_of(cells * CELL + r.choice([0, 1, CELL - 2, CELL - 1], d)), _alpha(r)


def one_per_cell(r, d):
    n = min(d, 400)
    return value_of((0x800 - n // 2 + np.arange(n)) * CELL + r.integers(0, CELL, n)), _alpha(r)


def at_threshold(r, d):
    """Two points at the far edges of one cell, c n within a per cent, or an ulp, of their distance.

    The two-point distribution attains the bound of the certificate, so a retire test that is
    even slightly too generous joins what must stay apart.
    """
    n = 2 * max(1, int(r.integers(1, max(2, d // 2))))
    cell = int(r.integers(0x7D0, 0x830))
    lo, hi = (float(v) for v in value_of([cell * CELL, cell * CELL + CELL - 1]))
    left = n // 2 if r.random() < 0.5 else int(r.integers(1, n))
    off = r.choice([1 + 2.0**-52, 1 - 2.0**-53, 1.0, 0.992, 0.9999, 1.0001])
    w = np.concatenate([np.full(left, lo), np.full(n - left, hi)])
    return w, (hi - lo) / n * off * (n - 1)


def threshold_in_company(r, d):
    """``at_threshold`` beside weights too far away to take part, which leave the boundary heights at zero."""
    w, alpha = at_threshold(r, d)
    far = np.array([-1e6, 1e6, 3e6])
    return np.concatenate([w, far]), alpha * (w.size + 2) / (w.size - 1)


def signed_zeros(r, d):
    """-0.0 beside one denormal: that at the far end (or nearly) of the widest bucket from 0.0."""
    few = max(1, d // 8)
    above = value_of(0x80000000 + CELL - 1 - int(r.random() < 0.2))
    zeros = np.where(r.random(few) < r.choice([1.0, 0.5]), -0.0, 0.0)
    w = np.concatenate([zeros, np.full(few, above), np.ones(max(1, d - 2 * few))])
    return w, float(10.0 ** r.uniform(-47, -38))


ZOO = {
    f.__name__: f
    for f in (
        gaussian, tight_clusters, cluster_and_tail, interleaved, spike_at_zero, heavy_tail, outliers,
        denormals,
        wide_range, geometric, one_value, two_values, from_bf16, staircase, epsilon_staircase, one_cell,
        cell_edges, one_per_cell, at_threshold, threshold_in_company, signed_zeros,
    )
}  # fmt: skip


def draw(name: str, seed: int, d: int) -> tuple[np.ndarray, float]:
    """float32 weights in random order, and alpha."""
    r = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        w, alpha = ZOO[name](r, d)
        w = np.asarray(w, np.float64).astype(np.float32)
    return r.permutation(w[np.isfinite(w)]), alpha
