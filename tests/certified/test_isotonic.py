"""Isotonic regression: against rational arithmetic, SciPy, scikit-learn, and itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression as scipy_isotonic

from weightshare.certified import isotonic_array, isotonic_rows


def exact_isotonic(y, weights):
    """Pool-adjacent-violators in rational arithmetic."""
    stack = []
    for i, (value, weight) in enumerate(zip(y, weights)):
        first, mass = i, Fraction(float(weight))
        total = mass * Fraction(float(value))
        while stack and stack[-1][2] / stack[-1][1] >= total / mass:
            first, m, s = stack.pop()
            mass, total = mass + m, total + s
        stack.append((first, mass, total))
    edges = [*[first for first, _, _ in stack], len(y)]
    means = [float(total / mass) for _, mass, total in stack]
    return np.repeat(means, np.diff(edges)), edges[:-1]


def inputs(n, seed=0):
    """Shapes of long inputs: noise, trends either way, plateaus, a sawtooth."""
    r = np.random.default_rng(seed)
    t = np.arange(n) / max(n, 1)
    yield "noise", r.standard_normal(n)
    yield "up", 10 * t + r.standard_normal(n)
    yield "down", -10 * t + r.standard_normal(n)
    yield "sorted", np.sort(r.standard_normal(n))
    yield "reversed", -np.sort(r.standard_normal(n))
    yield "plateaus", np.floor(20 * t) + r.integers(0, 2, n)
    yield "sawtooth", (np.arange(n) % 1000) / 1000 - 2 * t
    yield "constant", np.ones(n)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 4)), min_size=1, max_size=60))
def test_small_vectors_are_exact(pairs):
    y, weights = (np.array(part, np.float64) for part in zip(*pairs))
    for w in (weights, np.ones_like(y)):
        expected, starts = exact_isotonic(y, w)
        result = isotonic_array(y, None if (w == 1).all() else w)
        np.testing.assert_array_max_ulp(result.out, expected, 2)
        assert result.starts.tolist() == starts


@pytest.mark.parametrize("n", [1, 2, 16_383, 16_384, 16_385, 200_000])
@pytest.mark.parametrize("increasing", [True, False])
def test_long_vectors_agree_with_scipy(n, increasing):
    for name, y in inputs(n):
        for weights in (None, np.random.default_rng(1).uniform(0.5, 2, n)):
            expected = scipy_isotonic(y, weights=weights, increasing=increasing).x
            result = isotonic_array(y, weights, increasing=increasing, threads=2)
            np.testing.assert_allclose(result.out, expected, rtol=0, atol=1e-11, err_msg=name)
            steps = np.diff(result.out) if increasing else -np.diff(result.out)
            assert (steps >= 0).all()
            assert np.isin(np.flatnonzero(steps) + 1, result.starts).all()


def test_agrees_with_scikit_learn():
    isotonic = pytest.importorskip("sklearn.isotonic")
    y = np.random.default_rng(0).standard_normal(50_000)
    np.testing.assert_allclose(isotonic_array(y).out, isotonic.isotonic_regression(y), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_nothing(dtype):
    for _, y in inputs(150_000, 3):
        y = y.astype(dtype)
        first = isotonic_array(y, threads=1)
        assert first.out.dtype == dtype
        for threads in (2, 3, 5):
            again = isotonic_array(y, threads=threads)
            np.testing.assert_array_equal(again.out, first.out)
            np.testing.assert_array_equal(again.heads, first.heads)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("increasing", [True, False])
def test_rows_and_in_place(dtype, increasing):
    r = np.random.default_rng(0)
    y, weights = r.standard_normal((40, 300)).astype(dtype), r.uniform(0.1, 3, (40, 300))
    for w in (None, weights):
        batch = isotonic_rows(y, w, increasing=increasing, threads=2)
        single = [
            isotonic_array(row, None if w is None else w[k], increasing=increasing) for k, row in enumerate(y)
        ]
        np.testing.assert_array_equal(batch.out, np.stack([s.out for s in single]))
        np.testing.assert_array_equal(batch.heads, np.stack([s.heads for s in single]))
        copy = y.copy()
        isotonic_rows(copy, w, copy, increasing=increasing)
        np.testing.assert_array_equal(copy, batch.out)
    copy = y[0].copy()
    isotonic_array(copy, None, copy, increasing=increasing)
    np.testing.assert_array_equal(copy, isotonic_array(y[0], increasing=increasing).out)


@pytest.mark.parametrize("power", [-1040, -300, 300, 1010])
@pytest.mark.parametrize("weight_power", [-900, 0, 900])
def test_any_magnitude(power, weight_power):
    r = np.random.default_rng(0)
    y, w = r.standard_normal(2000), r.uniform(0.5, 2, 2000)
    expected = np.ldexp(isotonic_array(y, w).out, power)
    for shape in (isotonic_array, lambda a, b: isotonic_rows(a[None], b[None])):
        result = shape(np.ldexp(y, power), np.ldexp(w, weight_power)).out.reshape(-1)
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-320)


def test_weights_too_far_apart_are_refused():
    with pytest.raises(ValueError, match="weights"):
        isotonic_array(np.array([1.0, 0.0]), np.array([1e-200, 1.0]))
