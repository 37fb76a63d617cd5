"""Isotonic regression against SciPy, scikit-learn, exact arithmetic, and its optimality conditions."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
import sklearn.isotonic
import torch
from hypothesis import given
from hypothesis import strategies as st

import exact
import weightshare as ws
from cases import DTYPES, VECTORS, staircase
from weightshare.collisions import TABLE

pairs = st.lists(
    st.tuples(st.floats(-8, 8, width=16), st.floats(2.0**-10, 64, width=16)), min_size=1, max_size=30
)


@pytest.mark.parametrize("algorithm", TABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_rational_arithmetic(algorithm, dtype):
    for name, values in VECTORS.items():
        y = torch.tensor(values, dtype=torch.float64).to(dtype)
        y = y[torch.isfinite(y)]
        expected = exact.isotonic([Fraction(a) for a in y.tolist()])
        scale = float(y.abs().max()) if y.numel() else 0.0
        got = ws.isotonic_regression(y, algorithm=algorithm)
        assert got.dtype == dtype
        assert exact.close(got, expected, scale), name


@given(pairs, st.booleans())
def test_weighted_against_rational_arithmetic(values, increasing):
    y, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*values))
    line = [Fraction(a) for a in y.tolist()]
    mass = [Fraction(a) for a in weights.tolist()]
    if increasing:
        expected = exact.isotonic(line, mass)
    else:
        expected = exact.isotonic(line[::-1], mass[::-1])[::-1]
    got = ws.isotonic_regression(y, weights, increasing)
    assert exact.close(got, expected, 8.0)
    assert bool((got.diff() >= 0).all() if increasing else (got.diff() <= 0).all())


@pytest.mark.parametrize("increasing", [True, False])
def test_agrees_with_scipy_and_scikit_learn_on_long_vectors(increasing):
    rng = np.random.default_rng(0)
    d = 50_000
    for y in (rng.normal(size=d), rng.normal(size=d).cumsum(), np.sort(rng.normal(size=d))):
        weights = rng.uniform(0.1, 3, size=d)
        ours = ws.isotonic_regression(torch.from_numpy(y), torch.from_numpy(weights), increasing).numpy()
        theirs = scipy.optimize.isotonic_regression(y, weights=weights, increasing=increasing).x
        assert np.allclose(ours, theirs, rtol=1e-10, atol=1e-11)
        theirs = sklearn.isotonic.isotonic_regression(y, sample_weight=weights, increasing=increasing)
        assert np.allclose(ours, theirs, rtol=1e-10, atol=1e-11)


def test_blocks_agree_with_scipy():
    y = np.random.default_rng(1).normal(size=200)
    theirs = scipy.optimize.isotonic_regression(y)
    x, clusters = ws.isotonic_regression(torch.from_numpy(y), return_clusters=True)
    assert clusters.starts.tolist() == theirs.blocks[:-1].tolist()
    assert clusters.starts.dtype == torch.int64
    assert clusters.count == len(theirs.blocks) - 1
    assert isinstance(clusters.count, int)
    assert torch.allclose(clusters.expand(clusters.means(torch.from_numpy(y))), x, rtol=1e-14)
    down, blocks = ws.isotonic_regression(torch.from_numpy(y), increasing=False, return_clusters=True)
    assert torch.equal(blocks.expand(blocks.means(down)), down)


def test_kearsley_counterexample():
    """The appendix: only 1 and 0.9 are averaged."""
    y = torch.tensor([0.7, 1.0, 0.9, 0.99], dtype=torch.float64)
    for algorithm in TABLE:
        x = ws.isotonic_regression(y, algorithm=algorithm)
        assert torch.allclose(x, torch.tensor([0.7, 0.95, 0.95, 0.99], dtype=torch.float64), atol=1e-16)


def test_batches_and_broadcast_weights():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(2, 3, 40, generator=generator)
    weights = torch.rand(3, 40, generator=generator) + 0.1
    x = ws.isotonic_regression(y, weights)
    assert x.dtype == torch.float32
    for i in range(2):
        for j in range(3):
            assert torch.equal(x[i, j], ws.isotonic_regression(y[i, j], weights[j]))
    assert torch.equal(x, ws.isotonic_regression(y.mT.contiguous().mT, weights))
    assert ws.isotonic_regression(torch.zeros(4, 0)).shape == (4, 0)
    assert ws.isotonic_regression(torch.zeros(0, 4)).shape == (0, 4)
    nothing, clusters = ws.isotonic_regression(torch.zeros(2, 3, 0), return_clusters=True)
    assert nothing.shape == (2, 3, 0)
    assert clusters.count.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert float(ws.isotonic_regression(torch.tensor(2.0))) == 2.0


def test_the_paper_worst_case_pools_to_one_block():
    y = staircase(2001, eps=1e-7)
    x, clusters = ws.isotonic_regression(y, return_clusters=True)
    assert clusters.count == 1
    assert torch.allclose(x, y.mean().expand_as(x))


def test_weights_of_any_magnitude():
    y = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    expected = ws.isotonic_regression(y, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    for factor in (2.0**-1000, 2.0**1000):
        weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) * factor
        assert torch.equal(ws.isotonic_regression(y, weights), expected)


@pytest.mark.parametrize("algorithm", TABLE)
def test_products_with_weights_stay_in_range(algorithm):
    """Values and weights are fine by themselves; their products are below the smallest number."""
    for y, weights in (
        ([3e-300, 1e-300], [1e-60, 1e-60]),
        ([3e-320, 1e-320, 1e-310], [1e-60, 1e-60, 1.0]),
        ([3e-200, 1e-200, 1e-190], [1e-90, 1e-90, 1e90]),
        ([3.0, 1.0, 2.5], [1e-90, 3e-90, 1e90]),
        ([3.0, 1.0, 2.5], [5e-324, 5e-324, 5e-324]),
        ([1e300, -1e300, 1e299], [1e300, 3e300, 1e300]),
    ):
        expected = exact.isotonic([Fraction(a) for a in y], [Fraction(a) for a in weights])
        y, weights = (torch.tensor(a, dtype=torch.float64) for a in (y, weights))
        for got in (
            ws.isotonic_regression(y, weights, algorithm=algorithm),
            ws.isotonic_regression(torch.stack([y, y]), weights, algorithm=algorithm)[1],
        ):
            assert exact.close(got, expected, float(y.abs().max()))


def test_weights_too_far_apart_to_be_summed_are_refused():
    y, weights = torch.tensor([[0.0, 5.0, 3.0], [1e300, 1e-10, 1e-5]], dtype=torch.float64)
    for algorithm in TABLE:
        with pytest.raises(
            ValueError, match=r"may differ by a factor of 4.15e\+180 at most, got 1e-10 and 1e\+300"
        ):
            ws.isotonic_regression(y, weights, algorithm=algorithm)


@pytest.mark.parametrize("bad", [[0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_bad_weights_are_named(bad):
    with pytest.raises(ValueError, match="weights must be (positive|finite)"):
        ws.isotonic_regression(torch.tensor([1.0, 2.0]), torch.tensor(bad))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"weights must broadcast to y, got shape \(3,\)"):
        ws.isotonic_regression(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"weights must be positive, got 0.0 at index \(1, 0\)"):
        ws.isotonic_regression(torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="weights are a meta tensor, which has no values"):
        ws.isotonic_regression(torch.zeros(2), torch.ones(2, device="meta"))
    with pytest.raises(TypeError, match="weights must have dtype"):
        ws.isotonic_regression(torch.zeros(2), torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="y must be finite, got nan at index"):
        ws.isotonic_regression(torch.tensor([0.0, float("nan")]))
