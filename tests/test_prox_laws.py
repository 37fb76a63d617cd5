"""Laws that hold for the prox of any vector, at the precision of its dtype."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laws
import weightshare as ws
from cases import DTYPES, alphas, weights


def vector(values, dtype=torch.float64):
    w = torch.tensor(values, dtype=dtype)
    return w[torch.isfinite(w)]


def rounding(w, *coefficients):
    """A few units in the last place of the largest number in play, for each summand."""
    top = float(w.abs().max()) if w.numel() else 0.0
    return 8 * torch.finfo(w.dtype).eps * (top + sum(coefficients)) + 1e-300


def noise(like, seed):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds = st.integers(0, 2**32)
betas = st.sampled_from([0.0, 0.1, 0.5, 3.0])


@given(weights, alphas, betas, st.sampled_from([torch.float64, torch.float32]))
def test_displacement_is_a_subgradient_at_the_result(values, alpha, beta, dtype):
    w = vector(values, dtype)
    p = ws.prox(w, alpha, beta)
    g = w.to(torch.float64) - p.to(torch.float64)
    allowed = rounding(w, alpha, beta) * max(w.numel(), 1)
    assert laws.subgradient_violation(g, p, alpha, beta) <= allowed


@given(weights, alphas, betas, seeds)
def test_no_other_point_has_a_lower_objective(values, alpha, beta, seed):
    w = vector(values)
    p = ws.prox(w, alpha, beta)
    best = laws.objective(p, w, alpha, beta)
    for size in (1e-3, 1e-1, 1.0):
        other = p + size * noise(w, seed)
        assert laws.objective(other, w, alpha, beta) >= best - 1e-9 * abs(best)


@given(weights, alphas)
def test_moreau_identity(values, alpha):
    """w = prox_f(w) + prox_f*(w), f = alpha R: the remainder is in the dual ball, and is its projection."""
    w = vector(values)
    p = ws.prox(w, alpha)
    g = w - p
    allowed = rounding(w, alpha) * max(w.numel(), 1)
    everywhere = torch.zeros_like(p)  # at 0 all weights are tied: the subdifferential is the dual ball
    assert laws.subgradient_violation(g, everywhere, alpha) <= allowed
    support = alpha * float(ws.penalty(p))
    assert float(g @ p) == pytest.approx(support, abs=allowed * (1 + float(p.abs().sum())), rel=1e-9)


@given(weights, alphas, seeds)
def test_non_expansive(values, alpha, seed):
    a = vector(values)
    b = a + 0.3 * noise(a, seed)
    p, q = ws.prox(a, alpha), ws.prox(b, alpha)
    allowed = rounding(torch.cat([a, b]), alpha) * max(a.numel(), 1)
    assert float((p - q).norm()) <= float((a - b).norm()) + allowed


@settings(max_examples=60)
@pytest.mark.parametrize("algorithm", ["auto", "imminent"])
@given(weights, alphas, betas, st.sampled_from(DTYPES), seeds)
def test_permutation_equivariant_order_preserving_and_tied_bitwise(
    algorithm, values, alpha, beta, dtype, seed
):
    w = vector(values, dtype)
    p = ws.prox(w, alpha, beta, algorithm=algorithm)
    order = torch.randperm(w.numel(), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(ws.prox(w[order], alpha, beta, algorithm=algorithm), p[order])
    by_value = w.argsort(stable=True)
    x, u = w[by_value], p[by_value]
    assert bool((u[1:] >= u[:-1]).all())
    assert torch.equal(u[1:][x[1:] == x[:-1]], u[:-1][x[1:] == x[:-1]])


@given(weights, alphas, st.sampled_from([-8.0, 0.5, 3.0]))
def test_translation_equivariant(values, alpha, shift):
    w = vector(values)
    moved = ws.prox(w + shift, alpha)
    assert torch.allclose(moved, ws.prox(w, alpha) + shift, rtol=0, atol=rounding(w, alpha, abs(shift)) * 4)


@given(weights, alphas)
def test_sum_is_kept(values, alpha):
    """Momentum is conserved and is zero (Proposition 3.4)."""
    w = vector(values)
    p = ws.prox(w, alpha)
    assert float((p - w).sum()) == pytest.approx(0.0, abs=rounding(w, alpha) * max(w.numel(), 1))


@given(weights, alphas)
def test_positively_homogeneous(values, alpha):
    w = vector(values)
    assert torch.equal(ws.prox(4 * w, 4 * alpha), 4 * ws.prox(w, alpha))


@given(weights)
def test_growing_alpha_only_merges(values):
    """Monotonic inclusion (Lemma 3.2): what is together stays together."""
    w = vector(values)
    previous = None
    for alpha in (0.0, 0.01, 0.1, 0.5, 2.0, 50.0):
        _, clusters = ws.prox(w, alpha, return_clusters=True)
        starts = set(clusters.starts.tolist())
        assert previous is None or starts <= previous
        previous = starts


@pytest.mark.parametrize("algorithm", ["auto", "imminent"])
@given(weights, st.sampled_from(DTYPES))
def test_zero_coefficients_give_the_weights_back(algorithm, values, dtype):
    w = vector(values, dtype)
    p = ws.prox(w, 0.0, algorithm=algorithm)
    assert torch.equal(p, w)
    assert p.data_ptr() != w.data_ptr() or w.numel() == 0


@given(weights, alphas)
def test_large_alpha_gives_the_mean_and_small_vectors_are_untouched(values, alpha):
    w = vector(values)
    top = 4 * (float(w.abs().max()) if w.numel() else 0.0) + 1
    p, clusters = ws.prox(w, top * max(w.numel(), 1), return_clusters=True)
    assert clusters.count == min(w.numel(), 1)
    if w.numel():
        assert torch.allclose(p, w.mean().expand_as(w), atol=rounding(w) * 4)
        assert torch.equal(ws.prox(w[:1], alpha), w[:1])


def test_inputs_are_never_changed_and_strides_do_not_matter():
    w = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    views = [w, w.T, w[:, ::3], w[::2].T, w.flip(0), w[None, :1].expand(4, 1, 10), w[0, 0]]
    for view, dim in itertools.product(views, (None, -1)):
        if view.ndim == 0 and dim is not None:
            continue
        before = view.clone()
        p, clusters = ws.prox(view, 0.5, 0.01, 0.2, dim=dim, return_clusters=True)
        assert torch.equal(view, before)
        assert torch.equal(p, ws.prox(before.contiguous(), 0.5, 0.01, 0.2, dim=dim))
        assert clusters.ids.shape == view.shape


def test_views_that_are_negated_on_reading():
    """The imaginary part of a conjugate is such a view: its memory holds minus its entries."""
    w = torch.randn(8, generator=torch.Generator().manual_seed(3))
    for dtype in DTYPES:
        view = torch._neg_view(w.to(dtype, copy=True))
        assert view.is_neg()
        for function in (lambda t: ws.prox(t, 0.5, 0.1), ws.isotonic_regression, ws.penalty, ws.subgradient):
            assert torch.equal(function(view), function(-w.to(dtype)))
        ws.prox_(view, 0.5, 0.1)
        assert torch.equal(view, ws.prox(-w.to(dtype), 0.5, 0.1))


def test_empty_batches_and_empty_vectors():
    for shape, dim in (
        ((0,), None),
        ((0, 5), -1),
        ((5, 0), -1),
        ((5, 0), 0),
        ((2, 0, 3), None),
        ((2, 0, 3), 1),
    ):
        p, clusters = ws.prox(torch.zeros(shape), 1.0, 1.0, dim=dim, return_clusters=True)
        assert p.shape == shape
        assert len(clusters) == 0
        assert "0 clusters" in repr(clusters)
        batch = () if dim is None else tuple(n for k, n in enumerate(shape) if k != dim % len(shape))
        assert torch.equal(torch.as_tensor(clusters.count), torch.zeros(batch, dtype=torch.int64))
        if clusters.offsets.numel() > 1:
            assert clusters.row(0).count == 0
        assert ws.penalty(torch.zeros(shape, requires_grad=True), dim=dim).requires_grad
    one, clusters = ws.prox(torch.tensor(2.0), 5.0, 0.5, return_clusters=True)
    assert float(one) == 1.5
    assert clusters.count == 1
