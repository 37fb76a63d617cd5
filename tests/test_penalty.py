"""R against its definition, its hyperplanes, and finite differences."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings

import exact
import weightshare as ws
from cases import DTYPES, VECTORS, weights


def hyperplane(w, order):
    """Eq. (7): h_pi(w) = 1/(d-1) sum_i (2i - d - 1) w_{pi_i}."""
    d = len(w)
    return sum((2 * i - d - 1) * w[p] for i, p in enumerate(order, start=1)) / (d - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_value_against_the_definition(name, dtype):
    w = torch.tensor(VECTORS[name], dtype=torch.float64).to(dtype)
    w = w[torch.isfinite(w)]
    expected = float(exact.penalty(w.tolist()))
    if expected > torch.finfo(dtype).max:
        return
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps  # a result below the smallest normal number is rounded to these
    assert float(ws.penalty(w)) == pytest.approx(expected, rel=2 * info.eps, abs=2 * least)
    assert ws.penalty(w).dtype == dtype


@settings(max_examples=40)
@given(weights)
def test_is_the_largest_hyperplane(values):
    """Eq. (8)."""
    w = [float(a) for a in values[:5]]
    if len(w) < 2:
        return
    best = max(hyperplane(w, order) for order in permutations(range(len(w))))
    scale = max(abs(a) for a in w)
    assert float(ws.penalty(torch.tensor(w, dtype=torch.float64))) == pytest.approx(
        best, rel=1e-12, abs=1e-15 * scale
    )


def test_worked_example_of_three_weights():
    """Example 2.1: each of the six orderings, its hyperplane, and R as their maximum."""
    planes = {
        (0, 1, 2): lambda w: w[2] - w[0],
        (0, 2, 1): lambda w: w[1] - w[0],
        (1, 0, 2): lambda w: w[2] - w[1],
        (1, 2, 0): lambda w: w[0] - w[1],
        (2, 0, 1): lambda w: w[1] - w[2],
        (2, 1, 0): lambda w: w[0] - w[2],
    }
    for w in ([0.5, -1.0, 2.0], [1.0, 1.0, 3.0], [4.0, 2.0, 1.0]):
        for order, plane in planes.items():
            assert hyperplane(w, order) == plane(w)
        assert float(ws.penalty(torch.tensor(w))) == max(plane(w) for plane in planes.values())


@given(weights)
def test_gradient_is_the_mean_over_active_hyperplanes(values):
    """Eq. (9), and the rule for ties: the mean of their ranks."""
    w = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    ws.penalty(w).backward()
    d = w.numel()
    below = (w.detach()[None, :] < w.detach()[:, None]).sum(1)
    equal = (w.detach()[None, :] == w.detach()[:, None]).sum(1)
    expected = (2 * below + equal - d).to(torch.float64) / max(d - 1, 1)
    assert torch.allclose(w.grad, expected, rtol=1e-14, atol=0)
    assert torch.equal(w.grad, ws.subgradient(w.detach()))


@given(weights)
def test_ranks_in_float32_are_those_in_float64(values):
    """Compiled code finds the ones, PyTorch the others. Zeros of either sign are equal."""
    single = torch.tensor([*values, 0.0, -0.0]).to(torch.float32)
    assert torch.equal(ws.subgradient(single), ws.subgradient(single.double()).to(torch.float32))
    rows = torch.stack([single, single.flip(0), single.roll(1)])
    assert torch.equal(ws.subgradient(rows, dim=1), ws.subgradient(rows.double(), dim=1).to(torch.float32))
    assert torch.equal(ws.penalty(rows, dim=1), ws.penalty(rows.double(), dim=1).to(torch.float32))


def test_gradient_against_finite_differences_away_from_ties():
    w = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ws.penalty(t, dim=1), w)
    assert torch.autograd.gradgradcheck(lambda t: ws.penalty(t, dim=0), w)


@given(weights)
def test_is_a_seminorm_blind_to_translation(values):
    w = torch.tensor(values, dtype=torch.float64)
    r = ws.penalty(w)
    assert float(r) >= 0
    assert float(ws.penalty(-3 * w)) == pytest.approx(3 * float(r), rel=1e-12)
    assert float(ws.penalty(torch.full_like(w, 0.1))) == 0.0


def test_batches():
    w = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    r = ws.penalty(w, dim=1)
    assert r.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert r[i, j] == ws.penalty(w[i, :, j])
    assert ws.penalty(torch.zeros(3, 0), dim=1).tolist() == [0.0, 0.0, 0.0]
    assert ws.penalty(torch.tensor(3.0)) == 0


def test_under_transforms():
    w = torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(torch.func.vmap(ws.penalty)(w), ws.penalty(w, dim=1))
    assert torch.equal(torch.func.grad(ws.penalty)(w), ws.subgradient(w))
    compiled = torch.compile(lambda t: ws.penalty(t, dim=1), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(w), ws.penalty(w, dim=1))
