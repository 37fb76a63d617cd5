"""The baselines do what their formulas say."""

import itertools

import pytest
import torch
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing, baselines, schedules
from weightshare.training.after import kmeans_, prune_


def one_step(model, method, lr=0.1, per="tensor", **rule):
    """The weights before and after one SGD step, and the gradient."""
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    sharing = WeightSharing(model, opt, Rule("0.weight", method=method, per=per, **rule))
    model(torch.ones(2, 12, dtype=model[0].weight.dtype)).square().sum().backward()
    w, g = model[0].weight.detach().clone(), model[0].weight.grad.clone()
    opt.step()
    sharing.remove()
    return w, g, model[0].weight.detach()


@pytest.mark.parametrize("coupling", ["scaled", "decoupled"])
@pytest.mark.parametrize("rho", [0.0, 0.98, 1.0])
def test_l1_is_the_prox_without_r(coupling, rho, mlp):
    w, g, got = one_step(mlp(), baselines.L1(0.05, rho, coupling))
    want = ws.prox(w - 0.1 * g, 0.0, 0.05, rho, step=0.1, coupling=coupling)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)
    assert torch.equal(got == 0, want == 0)


def test_beta_lasso(mlp):
    lam, beta, lr = 1e-3, 50.0, 0.1
    w, g, got = one_step(mlp(torch.float64), baselines.BetaLasso(lam, beta), lr)
    want = w - lr * (g + lam * w.sign())
    want[want.abs() < beta * lam] = 0
    torch.testing.assert_close(got, want)
    assert (got == 0).any()
    assert (got != 0).any()


def test_hard_thresholding_is_full_rewinding(mlp):
    w, g, got = one_step(mlp(), baselines.HardThreshold(0.05))
    want = ws.prox(w.sub(g, alpha=0.1), 0.0, 0.05, rho=1.0)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)
    assert torch.equal(got == 0, want == 0)


@pytest.mark.parametrize("per", ["tensor", "row", "column", 7])
def test_magnitude_zeroes_the_share(per, mlp):
    w, g, got = one_step(mlp(), baselines.Magnitude(0.5), per=per)
    moved = w - 0.1 * g
    rows = {
        "tensor": [got.flatten()],
        "row": list(got),
        "column": list(got.T),
        7: list(got.flatten().split(7)),
    }[per]
    assert all(int((row == 0).sum()) == len(row) // 2 for row in rows)
    torch.testing.assert_close(got[got != 0], moved[got != 0])
    if per == "tensor":
        assert moved[got == 0].abs().max() <= moved[got != 0].abs().min()


def test_magnitude_by_schedule(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(
        model, opt, Rule("0.weight", method=baselines.Magnitude(schedules.linear(0, 0.9, 10)))
    )
    seen = []
    train(model, opt, steps=12, during=lambda _: seen.append(sharing.report()["0.weight"]["zero"]))
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == int(192 * 0.9)


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_subgradient_is_the_gradient_of_the_penalised_loss(per, mlp):
    alpha, beta = 0.3, 0.01
    w, g, got = one_step(mlp(torch.float64), baselines.Subgradient(alpha, beta), per=per)
    leaf = w.clone().requires_grad_()
    (alpha * ws.penalty(leaf, dim=1 if per == "row" else None).sum() + beta * leaf.abs().sum()).backward()
    torch.testing.assert_close(got, w - 0.1 * (g + leaf.grad))


@pytest.mark.parametrize("fused", [False, True])
def test_gradient_baselines_under_a_scaler_and_closures(fused, mlp, batches):
    x, y = batches[0][0].double(), batches[0][1].double()
    results = []
    for how in ("plain", "closure", "scaler"):
        model = mlp(torch.float64)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        WeightSharing(model, opt, Rule(nn.Linear, method=baselines.Subgradient(0.3)))
        scaler = torch.amp.GradScaler("cpu", enabled=how == "scaler")

        def closure(model=model, opt=opt, scaler=scaler):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            return loss

        if how == "closure":
            opt.step(closure)
        else:
            closure()
            scaler.step(opt)
        results.append(model[0].weight.detach())
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_the_prox_ties_and_the_subgradient_does_not(mlp, train):
    counts = {}
    for name, rule in {
        "prox": Rule("0.weight", alpha=1.0),
        "subgradient": Rule("0.weight", method=baselines.Subgradient(1.0)),
    }.items():
        model = mlp()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        sharing = WeightSharing(model, opt, rule)
        train(model, opt, steps=40)
        counts[name] = sharing.report()["0.weight"]["distinct"]
    assert counts["prox"] < 96
    assert counts["subgradient"] > 180


def test_methods_have_their_own_coefficients():
    with pytest.raises(ValueError, match="its own coefficients"):
        Rule("w", alpha=1.0, method=baselines.L1(0.1))
    with pytest.raises(ValueError, match="zeros must be"):
        baselines.Magnitude(1.5)
    with pytest.raises(ValueError, match="lam must be"):
        baselines.BetaLasso(-1.0)


def error(w, sizes):
    return sum(float((part - part.mean()).square().sum()) for part in w.split(sizes))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_kmeans_is_optimal(k):
    torch.manual_seed(k)
    model = nn.Linear(9, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_((torch.randn(9) * 4).round() / 4)
    w = model.weight.detach().flatten().sort().values
    cuts = itertools.combinations(range(1, 9), k - 1)
    best = min(error(w, [b - a for a, b in itertools.pairwise((0, *cut, 9))]) for cut in cuts)
    before = model.weight.detach().clone()
    kmeans_(model, k)
    assert len(model.weight.unique()) <= k
    assert float((model.weight.detach() - before).square().sum()) == pytest.approx(best, abs=1e-12)


def test_kmeans_of_rows_groups_and_models(mlp):
    model = mlp()
    kmeans_(model, 3, "0.weight", per="row")
    assert all(len(row.unique()) == 3 for row in model[0].weight)
    assert len(model[0].weight.unique()) == 48
    kmeans_(model, 4, per="group")
    assert len(torch.cat([model[0].weight.flatten(), model[2].weight.flatten()]).unique()) == 4
    assert len(model[0].bias.unique()) == 16
    with pytest.raises(ValueError, match="clusters"):
        kmeans_(model, 0)


def test_prune(mlp):
    model = mlp()
    before = model[0].weight.detach().clone()
    prune_(model, 0.75)
    w = model[0].weight.detach()
    assert int((w == 0).sum()) == 144
    assert before[w == 0].abs().max() <= before[w != 0].abs().min()
    assert torch.equal(w[w != 0], before[w != 0])
