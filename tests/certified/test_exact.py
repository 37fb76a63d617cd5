"""Every route against rational arithmetic, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from certified.twin import exact_prox
from certified.zoo import ZOO, draw
from weightshare.certified import prox_array, prox_rows
from weightshare.certified.half import narrow, widen

SETTINGS = [(0.0, 1.0), (0.1, 1.0), (0.05, 0.5), (0.2, 0.0), (0.0, 0.25)]


def same(result, exact, out) -> None:
    """Same values, same clusters, same zeros."""
    np.testing.assert_array_equal(result.out, out)
    np.testing.assert_array_equal(result.clusters.starts, exact.starts)
    np.testing.assert_array_equal(result.clusters.ids, exact.ids)
    assert result.zeros == exact.zeros
    assert result.info.clusters == len(exact.starts)


@pytest.mark.parametrize("route", ["auto", "small", "certified", "partition"])
@pytest.mark.parametrize("name", ZOO)
def test_float32_is_the_correctly_rounded_exact_prox(name, route):
    for seed in range(12):
        w, alpha = draw(name, seed, 4 + 13 * (seed % 6) + seed)
        beta, scale = SETTINGS[seed % len(SETTINGS)]
        exact = exact_prox(w, alpha, beta, scale)
        result = prox_array(
            w, alpha=alpha, beta=beta, scale=scale, threads=1 + seed % 3, route=route, ids=True
        )
        same(result, exact, exact.singles)


@pytest.mark.parametrize("form", ["bf16", "fp16"])
@pytest.mark.parametrize("route", ["auto", "lut", "small", "certified", "partition"])
@pytest.mark.parametrize(
    "name", sorted(set(ZOO) - {"outliers", "wide_range", "heavy_tail", "threshold_in_company"})
)
def test_halves_are_the_rounded_exact_prox(name, route, form):
    for seed in range(3):
        w, alpha = draw(name, seed, 40)
        bits = narrow(w, form)
        beta, scale = SETTINGS[seed % len(SETTINGS)]
        exact = exact_prox(widen(bits, form), alpha, beta, scale)
        result = prox_array(bits, alpha=alpha, beta=beta, scale=scale, route=route, ids=True, format=form)
        same(result, exact, narrow(exact.singles, form))


@pytest.mark.parametrize("route", ["small", "partition"])
@pytest.mark.parametrize("name", ZOO)
def test_float64_is_within_rounding_of_the_exact_prox(name, route):
    for seed in range(12):
        w, alpha = draw(name, seed, 60)
        w = w.astype(np.float64) * (1 + 1e-9 * np.random.default_rng(seed).standard_normal(w.size))
        beta, scale = SETTINGS[seed % len(SETTINGS)]
        exact = exact_prox(w, alpha, beta, scale)
        result = prox_array(w, alpha=alpha, beta=beta, scale=scale, threads=2, ids=True, route=route)
        np.testing.assert_array_max_ulp(result.out, exact.values, 1)
        np.testing.assert_array_equal(result.clusters.starts, exact.starts)
        np.testing.assert_array_equal(result.clusters.ids, exact.ids)


@pytest.mark.parametrize("power", [-1060, -400, 300, 1000])
def test_float64_of_any_magnitude(power):
    w = np.random.default_rng(power + 2000).standard_normal(50)
    scaled = np.ldexp(w, power)
    alpha = float(np.ldexp(0.3, power))
    result = prox_array(scaled, alpha=alpha)
    exact = exact_prox(scaled, alpha)
    assert np.isfinite(result.out).all()
    np.testing.assert_array_max_ulp(result.out, exact.values, 1)


@pytest.mark.parametrize("route", ["small", "certified", "partition"])
@pytest.mark.parametrize("last", [2.0**-60, -(2.0**-60)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_float32_is_rounded_once(route, last, sign):
    w = sign * np.array([2 + 2.0**-22, 2.0, last, 0.0], np.float32)
    nearest = sign * (1 + 2.0**-23 * (last > 0))  # the float64 in between lies midway, and its even side is 1
    assert prox_array(w, alpha=100.0, route=route).out.tolist() == [nearest] * 4
    assert exact_prox(w, 100.0).singles.tolist() == [nearest] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("alpha", [1e38, 1e300, 1.7e308])
def test_a_huge_alpha_gives_the_mean(dtype, alpha):
    w = np.array([1.0, -2.0, 4.0, 1e30], dtype)
    assert prox_array(w, alpha=alpha).out.tolist() == [dtype(np.float64(w.astype(np.float64).sum()) / 4)] * 4


@pytest.mark.parametrize("route", ["auto", "small", "certified", "partition"])
def test_nothing_to_do_gives_back_every_weight(route):
    for name in ZOO:
        w, _ = draw(name, 3, 200)
        np.testing.assert_array_equal(prox_array(w, alpha=0.0, route=route).out, w)
        np.testing.assert_array_equal(prox_array(w.astype(np.float64), alpha=0.0).out, w)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_weight_and_one_weight(dtype):
    assert prox_array(np.empty(0, dtype), alpha=1.0, ids=True).clusters.count == 0
    result = prox_array(np.array([3.0], dtype), alpha=1.0, beta=0.5, ids=True)
    assert result.out.tolist() == [2.5]
    assert result.clusters.ids.tolist() == [0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_vectors(dtype):
    r = np.random.default_rng(0)
    w = np.round(r.standard_normal((37, 101)), 1).astype(dtype)
    for beta, scale in SETTINGS:
        batch = prox_rows(w, alpha=0.3, beta=beta, scale=scale, threads=2)
        single = [prox_array(row, alpha=0.3, beta=beta, scale=scale) for row in w]
        np.testing.assert_array_equal(batch.out, np.stack([s.out for s in single]))
        assert batch.zeros == sum(s.zeros for s in single)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("route", ["auto", "small", "certified", "partition"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_refused_before_anything_is_written(bad, route, dtype):
    w = np.random.default_rng(0).standard_normal(1000).astype(dtype)
    w[17] = bad
    before = w.copy()
    with pytest.raises(ValueError, match="finite"):
        prox_array(w, w, alpha=0.1, route=route)
    np.testing.assert_array_equal(w, before)


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1])
def test_halves_that_are_not_finite_are_refused(bits):
    w = np.zeros(9000, np.uint16)
    w[5] = bits
    for route in ("lut", "small", "certified"):
        with pytest.raises(ValueError, match="finite"):
            prox_array(w, w, alpha=0.1, route=route, format="bf16")


def test_largest_floats_are_not_mistaken_for_infinity():
    most = np.finfo(np.float32).max
    w = np.array([-most, most, 1.0, 0.0] * 10, np.float32)
    for route in ("small", "certified", "partition"):
        np.testing.assert_array_equal(prox_array(w, alpha=0.0, route=route, clusters=True).out, w)
