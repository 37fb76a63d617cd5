"""Units that are moved side by side, on several threads, are moved as they are one by one."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing, together


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    torch.set_num_threads(request.param)
    return request.param


def model_of(dtype=torch.float32):
    """One long vector, several of middle length, short ones."""
    torch.manual_seed(0)
    sizes = [(400, 700), *((130 + i, 130) for i in range(8)), (130, 130), (5, 7)]
    model = nn.ModuleList([nn.Linear(a, b) for a, b in sizes]).to(dtype)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 0.1
    return model


def rules():
    return [
        Rule("1.weight", alpha=0.5, target_distinct=50),
        Rule("4.weight", alpha=0.5, beta=0.01, rho=0.5, coupling="decoupled"),
        Rule("9.weight", alpha=0.5, per="row"),
        Rule("2.bias", method=ws.baselines.HardThreshold(0.01)),
        Rule(nn.Linear, alpha=0.5),
    ]


def stepped(model, optimizer, steps):
    sharing = WeightSharing(model, optimizer, rules())
    for _ in range(steps):
        optimizer.step()
    return sharing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_as_one_by_one(dtype, threads, monkeypatch):
    model = model_of(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ran = []
    run = together.run
    monkeypatch.setattr(
        together, "run", lambda tasks, count: (ran.append((len(tasks), count)), run(tasks, count))
    )
    versions = [p._version for p in model.parameters()]
    sharing = stepped(model, optimizer, 10)
    assert ran == [(0 if threads == 1 else 8, threads)] * 10  # not the long one, nor the short, nor rows
    assert all(p._version > v for p, v in zip(model.parameters(), versions))

    other = model_of(dtype)
    monkeypatch.setattr(together, "_beside", lambda *_: [])
    one_by_one = stepped(other, torch.optim.SGD(other.parameters(), lr=0.05), 10)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))
    assert sharing.state_dict() == one_by_one.state_dict()
    assert sharing.units[0].control.measurements == 1
    assert repr(sharing.report()) == repr(one_by_one.report())


def test_what_fails_is_named_and_the_rest_goes_on(threads):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sharing = WeightSharing(model, optimizer, rules())
    good = copy.deepcopy(model[3].weight.grad)
    model[3].weight.grad[2, 1] = float("nan")
    before = model[3].weight.detach().clone()
    with pytest.raises(
        ValueError, match=r"3\.weight, after optimizer step 0.*finite, got nan at index \(2, 1\)"
    ):
        optimizer.step()
    assert sharing.steps == 0
    with torch.no_grad():
        model[3].weight.copy_(before)
    model[3].weight.grad = good
    optimizer.step()
    assert sharing.steps == 1


class Counted:
    """What ``_beside`` asks of a unit."""

    def __init__(self, count):
        self.members = [type("Member", (), {"tensor": torch.empty(count, device="meta")})]

    def stands_alone(self, step):
        return True


@given(st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 8))
def test_no_thread_has_to_wait_for_a_long_vector(counts, threads):
    units = [(Counted(count), 0.1) for count in counts]
    beside = together._beside(units, 0, threads)
    lengths = [together._length(one) for one in beside]
    assert lengths == sorted(lengths, reverse=True)
    assert set(map(id, beside)) <= set(map(id, units))
    assert all(together.SHORTEST <= n <= sum(lengths) / (2 * threads) for n in lengths)
    assert threads > 1 or not beside
