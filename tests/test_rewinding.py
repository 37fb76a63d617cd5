"""Rewinding and l1: equations (5) and (12) of the paper, and an independent solver."""

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightshare as ws
from cases import alphas, weights

betas = st.floats(0, 3, width=32)
rhos = st.sampled_from([0.0, 0.25, 0.5, 0.98, 1.0])


def vector(values):
    w = torch.tensor(values, dtype=torch.float64)
    return w[torch.isfinite(w)]


@given(weights, alphas, betas)
def test_prox_of_the_sum_is_soft_threshold_of_the_prox(values, alpha, beta):
    """Eq. (5)."""
    w = vector(values)
    inner = ws.prox(w, alpha)
    expected = inner.sign() * (inner.abs() - beta).clamp(min=0)
    atol = 1e-15 * (1 + alpha + beta + float(w.abs().sum()))
    assert torch.allclose(ws.prox(w, alpha, beta), expected, rtol=1e-14, atol=atol)


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.0), (0.3, 0.2), (2.0, 0.1), (0.0, 0.4)])
def test_agrees_with_a_convex_solver(alpha, beta):
    w = np.random.default_rng(0).normal(size=9)
    u = cvxpy.Variable(9)
    pairs = [(i, j) for i in range(9) for j in range(i)]
    difference = np.zeros((len(pairs), 9))
    for row, (i, j) in enumerate(pairs):
        difference[row, i], difference[row, j] = 1, -1
    r = cvxpy.norm1(difference @ u) / 8
    cvxpy.Problem(
        cvxpy.Minimize(alpha * r + beta * cvxpy.norm1(u) + cvxpy.sum_squares(u - w) / 2)
    ).solve(solver=cvxpy.CLARABEL)  # fmt: skip
    assert np.allclose(ws.prox(torch.from_numpy(w), alpha, beta).numpy(), u.value, atol=1e-5)


@given(weights, betas, rhos)
def test_rewound_l1(values, beta, rho):
    """Eq. (12): (w - (1 - rho) beta sign w) 1[|w| > beta]; where |w| = beta both readings give rho w."""
    w = vector(values)
    w = w[w.abs() != beta]
    expected = torch.where(w.abs() > beta, w - (1 - rho) * beta * w.sign(), 0.0)
    assert torch.allclose(ws.prox(w, 0.0, beta, rho), expected, rtol=1e-15, atol=0)


@given(weights, betas)
def test_full_rewinding_without_r_is_hard_thresholding(values, beta):
    w = vector(values)
    assert torch.equal(ws.prox(w, 0.0, beta, 1.0), torch.where(w.abs() < beta, 0.0, w))


@given(weights, alphas)
def test_full_rewinding_with_r_leaves_clusters_at_their_mean(values, alpha):
    w = vector(values)
    p, clusters = ws.prox(w, alpha, rho=1.0, return_clusters=True)
    assert torch.allclose(
        p,
        clusters.expand(clusters.means(w)),
        rtol=1e-15,
        atol=1e-15 * float(w.abs().max() if w.numel() else 0),
    )


@given(weights, alphas, betas, rhos)
def test_rewinding_moves_between_mean_and_prox(values, alpha, beta, rho):
    """Line 11: the rewound result is on the segment from rho = 1 to rho = 0, in the same clusters."""
    w = vector(values)
    none, full = ws.prox(w, alpha, beta), ws.prox(w, alpha, beta, 1.0)
    p = ws.prox(w, alpha, beta, rho)
    atol = 1e-14 * (1 + alpha + beta + float(w.abs().max() if w.numel() else 0))
    assert torch.allclose(p, full + (1 - rho) * (none - full), rtol=0, atol=atol)
    if rho == 0.0:
        assert torch.equal(p, none)


@given(weights, alphas, betas, rhos, st.sampled_from([0.0, 0.1, 1.0, 2.0]))
def test_step_size_in_both_couplings(values, alpha, beta, rho, step):
    w = vector(values)
    scaled = ws.prox(w, alpha, beta, rho, step=step)
    assert torch.equal(scaled, ws.prox(w, step * alpha, step * beta, rho))
    decoupled = ws.prox(w, alpha, beta, rho, step=step, coupling="decoupled")
    still, moved = ws.prox(w, alpha, beta, 1.0), ws.prox(w, alpha, beta, 0.0)
    atol = 1e-14 * (1 + step) * (1 + alpha + beta + float(w.abs().max() if w.numel() else 0))
    assert torch.allclose(decoupled, still + step * (1 - rho) * (moved - still), rtol=0, atol=atol)


@given(weights, alphas, st.floats(0.0078125, 3, width=32))
def test_weights_set_to_zero_are_one_cluster(values, alpha, beta):
    w = vector(values)
    p, clusters = ws.prox(w, alpha, beta, return_clusters=True)
    assert torch.equal(clusters.expand(clusters.means(p)), p)
    per_cluster = clusters.means(p)
    assert int((per_cluster == 0).sum()) <= 1 + int((ws.prox(w, alpha).abs() == beta).any()) * 2


def test_tensor_coefficients_equal_numbers():
    w = torch.randn(30, generator=torch.Generator().manual_seed(0))
    numbers = ws.prox(w, 0.5, 0.25, 0.5, step=0.5)
    half, quarter = torch.tensor(0.5), torch.tensor([0.25], dtype=torch.float64)
    assert torch.equal(ws.prox(w, half, quarter, half, step=half), numbers)
