"""The ODE: its state is the prox at every time, and what meets sticks."""

import matplotlib as mpl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightshare as ws
from cases import VECTORS, weights


@pytest.mark.parametrize("name", VECTORS)
def test_state_at_one_is_the_prox(name):
    """Theorem 3.3."""
    w = torch.tensor(VECTORS[name], dtype=torch.float64)
    for alpha in (0.0, 0.1, 1.0, 10.0):
        top = alpha + (float(w.abs().max()) if w.numel() else 0.0)
        assert torch.allclose(
            ws.particles(w, alpha).positions(1.0), ws.prox(w, alpha), rtol=0, atol=1e-14 * top
        )


@given(weights, st.floats(0.0078125, 5, width=32), st.floats(0, 1))
def test_state_at_any_time_is_the_prox_of_that_much_alpha(values, alpha, time):
    w = torch.tensor(values, dtype=torch.float64)
    top = alpha + (float(w.abs().max()) if w.numel() else 0.0)
    assert torch.allclose(
        ws.particles(w, alpha).positions(time), ws.prox(w, alpha * time), rtol=0, atol=1e-14 * top
    )


@given(weights, st.floats(0.0078125, 5, width=32))
def test_velocity_is_minus_a_subgradient_and_momentum_is_zero(values, alpha):
    """Lemma 3.1 and Proposition 3.4, with the velocities that bodies have between collisions."""
    w = torch.tensor(values, dtype=torch.float64)
    motion = ws.particles(w, alpha)
    for time in (0.0, 0.3, 0.9):
        alive = (motion.birth <= time) & (time < motion.death)
        sizes = (motion.stop - motion.first)[alive].to(torch.float64)
        assert float((motion.velocity[alive] * sizes).sum()) == pytest.approx(
            0, abs=1e-12 * alpha * w.numel()
        )
        here = motion.positions(time)
        later = motion.positions(min(time + 1e-9, 1.0))
        bodies = int(alive.sum())
        if here.unique().numel() == bodies:  # otherwise rounding hides a gap
            moved = motion.velocity[alive][motion.first[alive].argsort()]
            x = here.sort().values
            expected = -alpha * ws.subgradient(x).unique()
            assert torch.allclose(moved.sort().values, expected.sort().values, atol=1e-9 * alpha)
        assert later.unique().numel() <= bodies


@given(weights, st.floats(0.0078125, 5, width=32))
def test_bodies_form_a_forest(values, alpha):
    w = torch.tensor(values, dtype=torch.float64)
    motion = ws.particles(w, alpha)
    assert bool((motion.collision_times <= 1).all())
    for body, parent in enumerate(motion.parent.tolist()):
        if parent >= 0:
            assert motion.death[body] == motion.birth[parent]
            assert motion.first[parent] <= motion.first[body]
            assert motion.stop[body] <= motion.stop[parent]
        else:
            assert motion.death[body] == float("inf")


def test_positions_have_the_shape_and_order_of_the_weights():
    w = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    motion = ws.particles(w, 0.5, until=2.0)
    assert torch.equal(motion.positions(0.0), w.to(torch.float64))
    assert torch.allclose(motion.positions(2.0), ws.prox(w.to(torch.float64), 1.0))
    with pytest.raises(ValueError, match=r"time must be in \[0, 2\].*got 2.5"):
        motion.positions(2.5)


def test_a_path_leads_from_the_weight_to_its_prox():
    w = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w[3] = w[5]
    motion = ws.particles(w, 0.8)
    for i in range(12):
        path = motion.path(i)
        assert path[0].tolist() == [0.0, float(w[i])]
        assert path[-1].tolist() == pytest.approx([1.0, float(ws.prox(w, 0.8)[i])], abs=1e-14)
        for time, place in path[:-1].tolist():
            assert float(motion.positions(time)[i]) == pytest.approx(place, abs=1e-14)


def test_alpha_may_be_a_tensor_with_a_value():
    w = torch.tensor([0.0, 1.0, 4.0])
    motion = ws.particles(w, torch.tensor(1.0, requires_grad=True), until=torch.tensor(2.0))
    assert motion.collision_times.tolist() == [1.0]
    with pytest.raises(ValueError, match="alpha must be a concrete number here"):
        ws.particles(w, torch.tensor(1.0, device="meta"))


def test_trajectories_print_what_happened():
    w = torch.tensor([0.0, 1.0, 4.0])
    assert repr(ws.particles(w, 1.0)) == "Trajectories(3 weights, 1 collision up to t = 1)"
    assert repr(ws.particles(w[:1], 1.0, until=0.5)) == "Trajectories(1 weight, 0 collisions up to t = 0.5)"


def test_plot_draws_one_line_for_each_body(tmp_path):
    mpl.use("Agg")
    motion = ws.particles(torch.tensor([0.0, 0.1, 0.2, 1.0]), 0.3)
    axes = motion.plot(color="black")
    assert len(axes.collections[0].get_segments()) == motion.birth.numel()
    axes.figure.savefig(tmp_path / "particles.png")
    assert (tmp_path / "particles.png").stat().st_size > 0
