"""The controller reaches its target, stays there, and its swings shrink."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightshare.training import Rule, WeightSharing
from weightshare.training.baselines import L1
from weightshare.training.controller import GAIN, LIMIT, Controller, Goal


def plant(slope, right, delay, lag):
    """log2 q falls with log alpha, follows it ``delay`` measurements late, and smoothly."""
    past, state = [0.0] * delay, [8.0]

    def respond(shift):
        past.append(shift)
        aim = 5.0 - slope * (past[-1 - delay] - right)
        state[0] += (aim - state[0]) / lag
        return 2.0 ** state[0]

    return respond


@settings(max_examples=100, deadline=None)
@given(
    slope=st.floats(0.2, 5.0),
    right=st.floats(-6.0, 6.0),
    delay=st.integers(0, 15),
    lag=st.floats(1.0, 10.0),
    tolerance=st.floats(0.02, 0.3),
)
def test_swings_shrink_and_end_in_the_band(slope, right, delay, lag, tolerance):
    control = Controller(Goal("distinct", 32.0, tolerance))
    respond = plant(slope, right, delay, lag)
    extremes, shift, smooth = [], 0.0, True
    for _ in range(4000):
        turns = control.changes
        control.update(respond(control.shift))
        if control.changes > turns:
            extremes.append(abs(shift - right))
        smooth &= abs(control.shift - shift) <= GAIN / (1 + control.changes) + 1e-12
        shift = control.shift
    assert smooth
    # After n turns a swing can pass the right value by the moves made before the plant has answered.
    answer = delay + 1 + 8 * lag
    width = -math.log2(1 - tolerance) / slope
    for n, extreme in enumerate(extremes):
        assert extreme <= width + answer * GAIN / (1 + n) + 1e-9
    assert 0.999 * 32 * (1 - tolerance) <= control.measured <= 32 * 1.001
    assert control.goal.error(control.measured) == pytest.approx(0, abs=1e-2)


def test_the_coefficient_stays_within_its_limits():
    control = Controller(Goal("bits", 3.0, 0.1))
    for _ in range(1000):
        control.update(20.0)  # a layer that does not react at all
    assert control.shift == LIMIT
    control.update(0.0)
    assert control.shift < LIMIT


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 60, generator=generator, dtype=dtype)
    w = torch.randn(60, generator=generator, dtype=dtype) * (torch.rand(60, generator=generator) < 0.6)
    return x, x @ w


@pytest.mark.parametrize(
    ("target", "met"),
    [
        ({"target_distinct": 8}, lambda row: row["distinct"] <= 8),
        ({"target_bits": 2.5}, lambda row: row["bits"] <= 2.5),
        ({"target_zeros": 0.7, "alpha": 0.0}, lambda row: row["zero"] >= 42),
        ({"target_distinct": 8, "per": "group"}, lambda row: row["distinct"] <= 8),
    ],
)
def test_targets_are_met_and_held(target, met):
    x, y = problem()
    model = nn.Linear(60, 1, bias=False).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sharing = WeightSharing(model, opt, Rule("weight", tolerance=0.3, **target))
    held = []
    for i in range(2500):
        opt.zero_grad()
        nn.functional.mse_loss(model(x).squeeze(1), y).backward()
        opt.step()
        if i >= 2000:
            held.append(met(sharing.report()["weight"]))
    row = sharing.report()["weight"]
    assert all(held)
    assert row["met"]
    assert row["moves"] > 0
    assert row["alpha"] > 0 or row["beta"] > 0
    assert row["distinct"] > 1  # met, not overshot
    assert row["zero"] < 60


@pytest.mark.parametrize("target", [{"target_distinct": 8}, {"target_bits": 2.5}, {"target_zeros": 0.7}])
def test_the_swings_die_out_under_the_noise_of_minibatches(target):
    """The quantity jumps from batch to batch and never settles; the coefficient does."""
    (x, y), generator = problem(), torch.Generator().manual_seed(1)
    model = nn.Linear(60, 1, bias=False).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sharing = WeightSharing(model, opt, Rule("weight", tolerance=0.3, **target))
    control, shifts = sharing.units[0].control, []
    for _ in range(2500):
        batch = torch.randint(0, 300, (30,), generator=generator)
        opt.zero_grad()
        nn.functional.mse_loss(model(x[batch]).squeeze(1), y[batch]).backward()
        opt.step()
        shifts.append(control.shift)
    assert control.changes > 20  # it is noisy
    steps = [abs(b - a) for a, b in itertools.pairwise(shifts)]
    assert max(steps) <= GAIN
    early, late = (max(part) - min(part) for part in (shifts[1000:1500], shifts[2000:]))
    assert late < 0.1
    assert late < max(shifts) / 100
    assert early < 0.5


def test_every_tensor_has_its_own_controller(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sharing = WeightSharing(model, opt, Rule(nn.Linear, alpha=0.1, target_distinct=20))
    train(model, opt, steps=300)
    shifts = {u.name: u.control.shift for u in sharing.units}
    assert shifts["0.weight"] != shifts["2.weight"]
    assert "distinct <= 20" in repr(sharing.report())


def test_a_target_needs_a_coefficient_to_adapt():
    with pytest.raises(ValueError, match="target_bits adapts alpha"):
        Rule("w", method=L1(beta=0.1), target_bits=3.0)
    assert Rule("w", method=L1(beta=0.1), target_zeros=0.5).goal.coefficient == "beta"
