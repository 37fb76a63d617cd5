"""Bad input is refused with its name, its value and the remedy, before anything is changed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing, schedules
from weightshare.training.after import kmeans_, prune_
from weightshare.training.vectors import prox_each_


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": "a"}, "alpha must be a number, got 'a'"),
        ({"alfa": 1.0}, "unknown argument 'alfa'.*did you mean 'alpha'"),
        ({}, "does nothing: give alpha"),
        ({"alpha": 1.0, "certify_every": -1}, "certify_every must be a whole number >= 0, got -1"),
        ({"alpha": 1.0, "certify_every": "x"}, "certify_every must be a whole number, got 'x'"),
        ({"alpha": 1.0, "step": -1.0}, "step must be finite and >= 0, got -1.0"),
        ({"alpha": 1.0, "step": "x"}, "step must be a number, got 'x'"),
        ({"alpha": 1.0, "step": lambda group: math.nan}, "what step returns for the group of '0.weight'"),
        ({"alpha": 1.0, "log": "wandb"}, "log must be callable .*got 'wandb'"),
        ({"alpha": 1.0, "log_every": 0}, "log_every must be a whole number >= 1, got 0"),
        ({"rules": "0.weight"}, r"one or more Rule objects, got '0.weight'; write.*Rule\("),
        ({"rules": {"select": "0.weight"}}, "one or more Rule objects, got {'select'"),
        ({"model": None, "alpha": 1.0}, "model must be a torch.nn.Module or pairs.*got NoneType"),
        ({"optimizer": None, "alpha": 1.0}, "must be a torch.optim.Optimizer, got NoneType"),
    ],
)
def test_attaching(arguments, message, mlp):
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises((TypeError, ValueError), match=message):
        WeightSharing(**{"model": model, "optimizer": optimizer, **arguments})
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: ws.report(3), "model must be a torch.nn.Module or pairs.*got int"),
        (lambda model: ws.freeze_clusters(None), "model must be a torch.nn.Module, got NoneType"),
        (lambda model: ws.freeze_clusters(model, optimizer=3), "optimizer must be .*got int"),
        (lambda model: ws.unfreeze(3), "model must be a torch.nn.Module, got int"),
        (lambda model: kmeans_(model, 2.5), "clusters must be a whole number, got 2.5"),
        (lambda model: kmeans_(None, 2), "model must be a torch.nn.Module"),
        (lambda model: prune_(model, "most"), "zeros must be a number, got 'most'"),
        (lambda model: prune_(model, 1.5), r"zeros must be in \[0, 1\], got 1.5"),
        (lambda model: ws.optim.ProximalGradient(model.parameters(), lr="fast"), "lr must be a number"),
        (lambda model: ws.optim.ProximalGradient(model.parameters(), lr=math.nan), "lr must be finite"),
        (lambda model: schedules.warmup(0), "steps must be a whole number >= 1, got 0"),
        (lambda model: schedules.constant("1"), "value must be a number, got '1'"),
        (lambda model: schedules.step(0.0, [1]), r"milestones must map step numbers.*got \[1\]"),
        (lambda model: schedules.step(0.0, {-1: 1.0}), "a key of milestones must be a whole number >= 0"),
    ],
)
def test_other_calls(call, message, mlp):
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises((TypeError, ValueError), match=message):
        call(model)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_reports_of_any_model():
    """Whatever a model holds; and where there are no numbers to count, the tensor is named."""
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4), "complex": nn.Linear(2, 2, dtype=torch.complex64), "none": nn.ReLU()}
    )
    model["empty"] = nn.Linear(0, 3, bias=False)
    model["a"].small = nn.Parameter(torch.tensor([0.0, 1.5, 1.5, -2.0]).to(torch.float8_e4m3fn), False)
    model["a"].whole = nn.Parameter(torch.ones(3, dtype=torch.int8), False)
    table = ws.report(model)
    assert [row["tensor"] for row in table] == ["a.weight", "a.bias", "a.small", "empty.weight", "total"]
    assert {k: table["a.small"][k] for k in ("weights", "distinct", "zero", "bits")} == {
        "weights": 4, "distinct": 3, "zero": 1, "bits": 1.5,
    }  # fmt: skip
    with torch.no_grad():
        model["a"].weight[2, 1] = math.nan
    with pytest.raises(ValueError, match=r"a\.weight: w must be finite"):
        ws.report(model)
    with torch.device("meta"), pytest.raises(ValueError, match="'weight' is on the meta device"):
        ws.report(nn.Linear(2, 2))


@pytest.mark.parametrize("frozen", [False, True])
def test_sparse_gradients(frozen):
    """The prox does not look at them; what adds to gradients, or shares them, refuses before the step."""
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True))
    optimizer = sgd(model)
    sharing = WeightSharing(model, optimizer, Rule(nn.Embedding, alpha=1.0), certify_every=1)

    def step():
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
        before = model[0].weight.detach().clone()
        grad = model[0].weight.grad.to_dense()
        optimizer.step()
        return before - 0.1 * grad

    assert torch.equal(model[0].weight, ws.prox(step(), 1.0, step=0.1))
    assert sharing.report()["0.weight"]["residual"] > 0
    sharing.remove()
    if frozen:
        ws.freeze_clusters(model, "0.weight")
    else:
        WeightSharing(model, optimizer, Rule("0.weight", method=ws.baselines.BetaLasso(1e-3)))
    before = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"gradient of '0.weight' is sparse.*sparse=False"):
        step()
    assert torch.equal(model[0].weight, before)


def test_states_with_wrong_numbers(mlp):
    model = mlp()
    sharing = WeightSharing(model, sgd(model), alpha=0.1)
    for steps, message in (("a", "steps must be a whole number, got 'a'"), (-1, ">= 0, got -1")):
        with pytest.raises((TypeError, ValueError), match=message):
            sharing.load_state_dict({"steps": steps, "controllers": {}})
    sharing.load_state_dict({"steps": np.int64(3), "controllers": {}})
    assert sharing.steps == 3


def test_schedules_that_give_no_number(mlp):
    model = mlp()
    optimizer = sgd(model)
    WeightSharing(model, optimizer, Rule("0.weight", alpha=lambda step: "much"))
    model(torch.ones(2, 12)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(TypeError, match="schedule of alpha must give numbers, got 'much' at step 0"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))


# Vectors go to the solver by a short cut: it must be the same map, and refuse the same things.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 5), (40, 1000)])
@pytest.mark.parametrize("coupling", ["scaled", "decoupled"])
def test_the_short_cut_is_the_prox(dtype, shape, coupling):
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    settings = {"alpha": 0.7, "beta": 0.02, "rho": 0.3, "step": 0.1, "coupling": coupling}
    want, version = ws.prox(w, **settings), w._version
    prox_each_([w], "tensor", **settings)
    assert torch.equal(w, want)
    assert w._version > version or not w.numel()


def test_what_the_short_cut_refuses():
    w = torch.tensor([[1.0, 2.0], [3.0, math.inf]])
    settings = {"beta": 0.0, "rho": 0.0, "step": 1.0}
    with pytest.raises(ValueError, match=r"w must be finite, got inf at index \(1, 1\)"):
        prox_each_([w], "tensor", alpha=0.1, **settings)
    with pytest.raises(ValueError, match="alpha overflows"):
        prox_each_([torch.ones(3)], "tensor", alpha=1e300, **settings | {"step": 1e300})
    assert w[0].tolist() == [1.0, 2.0]


def test_a_weight_of_an_unusual_kind_still_works():
    model = nn.Linear(6, 4)
    want = ws.prox(model.weight.detach().T, 0.3)
    model.weight = nn.Parameter(model.weight.detach().T.contiguous().T)  # not contiguous
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    WeightSharing(model, optimizer, alpha=0.3)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert torch.equal(model.weight.detach().T, want)
