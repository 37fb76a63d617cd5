"""Every algorithm, dtype and batch form agrees with exact rational arithmetic, and with SciPy."""

import numpy as np
import pytest
import scipy.optimize
import torch

import exact
import weightshare as ws
from cases import DTYPES, VECTORS, staircase_weights
from weightshare.collisions import TABLE
from weightshare.collisions.bridge import TILE

ALPHAS = (0.0, 0.02, 0.4, 3.0)


def representable(values, dtype):
    """The vector as the dtype sees it, without what overflows there."""
    w = torch.tensor(values, dtype=torch.float64).to(dtype)
    return w[torch.isfinite(w)]


@pytest.mark.parametrize("algorithm", TABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_rational_arithmetic(algorithm, dtype):
    for name, values in VECTORS.items():
        w = representable(values, dtype)
        for alpha in ALPHAS:
            p, clusters = ws.prox(w, alpha, algorithm=algorithm, return_clusters=True)
            expected, sizes = exact.prox(w.tolist(), alpha)
            scale = max([abs(a) for a in w.tolist()], default=0.0) + alpha
            assert exact.close(p, expected, scale), (name, alpha)
            if clusters.sizes.tolist() != sizes:  # only where float64 cannot tell a touch from a miss
                assert exact.misplaced(clusters.starts.tolist(), w.tolist(), alpha) <= 2e-15 * scale
            assert p.dtype == dtype
            assert p.shape == w.shape


@pytest.mark.parametrize("algorithm", TABLE)
@pytest.mark.parametrize("coupling", ["scaled", "decoupled"])
def test_whole_of_algorithm_2_agrees_with_rational_arithmetic(algorithm, coupling):
    for name, values in VECTORS.items():
        w = representable(values, torch.float64)
        for alpha, beta, rho, step in (
            (0.4, 0.3, 0.5, 1.0),
            (0.937, 0.1, 1.0, 1.0),
            (0.937, 0.1, 0.98, 1.0),
            (0.0, 0.6, 1.0, 0.5),
            (2.0, 0.1, 0.98, 0.25),
        ):
            p = ws.prox(w, alpha, beta, rho, step=step, coupling=coupling, algorithm=algorithm)
            expected, _ = exact.prox(w.tolist(), alpha, beta, rho, step, coupling)
            scale = max([abs(a) for a in w.tolist()], default=0.0) + alpha + beta
            assert exact.close(p, expected, scale), (name, alpha, beta, rho, step)


@pytest.mark.parametrize("algorithm", [name for name in TABLE if name != "auto"])
def test_particles_that_just_touch_are_one_cluster(algorithm):
    """Half-integers under alpha = 1/2: many destinations are equal, as thirds and fifths and sevenths.

    With rewinding the result depends on it, so a touch must not be a matter of rounding.
    """
    generator = torch.Generator().manual_seed(4)
    for d in (4, 6, 7, 8, 11):
        for w in torch.randint(-5, 6, (40, d), generator=generator).to(torch.float64) / 2:
            p, clusters = ws.prox(w, 0.5, rho=1.0, algorithm=algorithm, return_clusters=True)
            expected, sizes = exact.prox(w.tolist(), 0.5, rho=1)
            assert clusters.sizes.tolist() == sizes
            assert exact.close(p, expected, 3.0)


@pytest.mark.parametrize("algorithm", TABLE)
def test_every_slice_of_a_batch_is_its_own_vector(algorithm):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(3, 37, 2, generator=generator, dtype=torch.float64)
    w[0, :5, 0] = 0.25
    w[2] = 1.0
    for dim, alpha in ((1, 0.3), (-1, 0.3), (0, 2.0), (-2, 0.0)):
        p, clusters = ws.prox(w, alpha, 0.05, dim=dim, algorithm=algorithm, return_clusters=True)
        assert p.shape == w.shape
        columns = w.movedim(dim, -1).reshape(-1, w.shape[dim])
        results = p.movedim(dim, -1).reshape(columns.shape)
        for row, (column, result) in enumerate(zip(columns, results)):
            alone, its = ws.prox(column, alpha, 0.05, algorithm=algorithm, return_clusters=True)
            assert torch.equal(result, alone)
            assert torch.equal(clusters.row(row).starts, its.starts)
            assert torch.equal(clusters.row(row).ids, its.ids)


@pytest.mark.parametrize("algorithm", [name for name in TABLE if name not in ("end", "imminent-v1")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_agrees_with_scipy_on_long_vectors(algorithm, dtype):
    generator = torch.Generator().manual_seed(2)
    d = 20_001
    normal = torch.randn(d, generator=generator, dtype=torch.float64)
    clustered = torch.round(normal) + 1e-3 * torch.randn(d, generator=generator, dtype=torch.float64)
    for w, alpha in ((normal, 1e-2), (normal, 3.0), (clustered, 1e-2), (staircase_weights(2001), 1.0)):
        d = w.numel()
        w = w.to(dtype)
        p = ws.prox(w, alpha, algorithm=algorithm).to(torch.float64)
        x, order = w.to(torch.float64).sort(stable=True)
        i = np.arange(1, d + 1)
        y = x.numpy() + alpha / (d - 1) * (d - 2 * i + 1)
        expected = torch.empty(d, dtype=torch.float64)
        expected[order] = torch.from_numpy(scipy.optimize.isotonic_regression(y).x)
        tolerance = 1e-11 if dtype == torch.float64 else 1e-7 * float(w.abs().max())
        assert float((p - expected).abs().max()) < tolerance


@pytest.mark.parametrize("algorithm", TABLE)
def test_sums_stay_exact_in_a_long_vector(algorithm):
    """Many weights far from zero, and a short cluster at the end that a lossy prefix sum would blur.

    The sum of those before is 2e15, so that float64 holds it to 1/4; the pair at the end decides by less
    than that, and stands on both sides of a boundary between tiles of Bridge.
    """
    d = 20 * TILE + 2
    w = 1e11 + torch.arange(d, dtype=torch.float64) / 128
    tail = torch.tensor([1.5, 2.25, 9.0], dtype=torch.float64)
    w[-3:] = 2e11 + tail  # with c = 1 the first two are within reach of each other, the third is not
    p, clusters = ws.prox(w, float(d - 1), algorithm=algorithm, return_clusters=True)
    assert clusters.sizes.tolist() == [d - 3, 2, 1]
    expected = torch.stack([2e11 + tail[:2].mean() - (d - 4), 2e11 + tail[2] - (d - 1)])
    assert torch.equal(p[[-2, -1]], expected)


def test_magnitudes_near_overflow_are_solved():
    w = torch.tensor([1.7e308, -1.7e308, 1.0, 1.6e308, -3e307], dtype=torch.float64)
    for alpha in (0.0, 1.0, 1e307, 1.7e308):
        for algorithm in TABLE:
            p = ws.prox(w, alpha, algorithm=algorithm)
            expected, _ = exact.prox(w.tolist(), alpha)
            assert torch.isfinite(p).all()
            for a, b in zip(p.tolist(), expected):
                assert abs(exact.Fraction(a) - b) <= 1e-12 * 1.7e308


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_huge_coefficients_merge_everything_in_narrow_dtypes(dtype):
    w = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    for algorithm in TABLE:
        assert ws.prox(w, 1.7e308, algorithm=algorithm).tolist() == [2.0, 2.0, 2.0]
        assert ws.prox(w, 1.0, 1.7e308, algorithm=algorithm).tolist() == [0.0, 0.0, 0.0]


def test_long_chains_of_lifted_values_take_no_time_worth_mentioning():
    """Rewinding beside zeroed clusters: many weights whose order Algorithm 2 turns around."""
    n = 32_000
    d = 5 * n
    i = torch.arange(1, d + 1, dtype=torch.float64)
    w = torch.full((d,), -100.0, dtype=torch.float64)
    w[3 * n : 4 * n] = -0.1001 + (7 * n - d) / (d - 1)  # ends at -0.1001, is kept, and rewound across zero
    w[4 * n :] = torch.linspace(-0.0999, 0.0999, n) - (d - 2 * i[4 * n :] + 1) / (d - 1)  # all zeroed
    for rho in (0.0, 0.98, 1.0):
        p, q = (ws.prox(w, 1.0, 0.1, rho, algorithm=name) for name in ("auto", "imminent"))
        assert torch.allclose(p, q, rtol=0, atol=1e-12)
        assert bool((p[4 * n :] == 0).all())
        assert bool((p[3 * n : 4 * n] != 0).all())
