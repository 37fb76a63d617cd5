"""Proximal gradient descent reaches the minimum, and the residual says so."""

import copy
import pickle

import pytest
import torch
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing, baselines
from weightshare.training.optim import ProximalGradient

ALPHA, BETA = 0.5, 0.05


@pytest.fixture
def lasso():
    """Least squares with clustered weights: f, its Lipschitz constant, and the weights."""
    generator = torch.Generator().manual_seed(3)
    x = (
        torch.randn(60, 40, generator=generator, dtype=torch.float64)
        @ torch.diag(torch.logspace(0, -1, 40)).double()
    )
    y = x @ torch.randint(-2, 3, (40,), generator=generator).double()
    y = y + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    w = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    return (lambda v: (x @ v - y).square().sum() / 120), float(torch.linalg.eigvalsh(x.T @ x)[-1]) / 60, w


def objective(f, w):
    w = w.detach()
    return float(f(w) + ALPHA * ws.penalty(w) + BETA * w.abs().sum())


def minimise(f, w, steps, **settings):
    opt = ProximalGradient([w], alpha=ALPHA, beta=BETA, **settings)

    def closure():
        opt.zero_grad()
        loss = f(w)
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)
    return opt


def test_both_reach_the_minimum_that_a_convex_solver_finds(lasso):
    cvxpy = pytest.importorskip("cvxpy")
    f, lipschitz, w = lasso
    plain, fast = w, w.detach().clone().requires_grad_()
    assert minimise(f, plain, 3000, lr=1 / lipschitz, accelerated=False).residual < 1e-6
    assert minimise(f, fast, 600, lr=1 / lipschitz).residual < 1e-8
    torch.testing.assert_close(plain, fast, rtol=0, atol=1e-5)
    assert 1 < len(fast.unique()) < 40

    # f is quadratic: f(w) = 1/2 w'Hw + g'w + f(0).
    zero = torch.zeros(40, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(f, zero).numpy()
    slope = torch.autograd.functional.jacobian(f, zero).numpy()
    v = cvxpy.Variable(40)
    pairs = sum(cvxpy.norm1(v[i] - v[i + 1 :]) for i in range(39)) / 39
    loss = cvxpy.quad_form(v, cvxpy.psd_wrap(hessian)) / 2 + slope @ v
    best = cvxpy.Problem(cvxpy.Minimize(loss + ALPHA * pairs + BETA * cvxpy.norm1(v))).solve(
        solver="CLARABEL"
    )
    assert objective(f, fast) == pytest.approx(best + float(f(zero)), abs=1e-6)


def test_acceleration_and_restart_help(lasso):
    f, lipschitz, w = lasso
    best = w.detach().clone().requires_grad_()
    minimise(f, best, 2000, lr=1 / lipschitz)
    gap = {}
    for name, settings in {
        "plain": {"accelerated": False},
        "none": {"restart": "none"},
        "gradient": {},
    }.items():
        v = w.detach().clone().requires_grad_()
        opt = minimise(f, v, 60, lr=1 / lipschitz, **settings)
        gap[name] = objective(f, v) - objective(f, best)
        assert (opt.restarts > 0) == (name == "gradient")
    assert gap["gradient"] < gap["none"] < gap["plain"]


def test_fista_is_the_published_recursion(lasso):
    f, lipschitz, w = lasso
    lr, x, last, t = 1 / lipschitz, w.detach().clone(), w.detach().clone(), 1.0
    y = x
    for _ in range(15):
        point = y.clone().requires_grad_()
        (slope,) = torch.autograd.grad(f(point), point)
        last, x = x, ws.prox(y - lr * slope, ALPHA, BETA, step=lr)
        t, previous = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
        y = x + (previous - 1) / t * (x - last)
    minimise(f, w, 15, lr=lr, restart="none")
    torch.testing.assert_close(w.detach(), x, rtol=1e-10, atol=1e-12)


def test_state_continues_exactly(lasso):
    f, lipschitz, w = lasso
    whole, part = w, w.detach().clone().requires_grad_()
    minimise(f, whole, 40, lr=1 / lipschitz)
    opt = minimise(f, part, 15, lr=1 / lipschitz)
    state = copy.deepcopy(opt.state_dict())
    again = ProximalGradient([part], lr=1.0)
    again.load_state_dict(state)

    def closure():
        again.zero_grad()
        f(part).backward()

    for _ in range(25):
        again.step(closure)
    assert torch.equal(whole, part)


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_continue_exactly(copying, lasso):
    f, lipschitz, w = lasso
    opt = minimise(f, w, 15, lr=1 / lipschitz, restart="none")
    other = copying(opt)
    (v,) = other.param_groups[0]["params"]
    for _ in range(5):
        for optimizer, x in ((opt, w), (other, v)):

            def closure(optimizer=optimizer, x=x):
                optimizer.zero_grad()
                f(x).backward()

            optimizer.step(closure)
    assert torch.equal(w, v)
    assert (other.residual, other.restart) == (opt.residual, "none")
    with pytest.raises(ValueError, match="must come from ProximalGradient"):
        other.load_state_dict(torch.optim.SGD([v], lr=0.1).state_dict())


def test_errors(lasso):
    w = lasso[2]
    with pytest.raises(ValueError, match="needs a closure"):
        ProximalGradient([w], lr=0.1).step()
    for bad, message in (
        ({"lr": 0.0}, "lr must be"),
        ({"lr": 0.1, "alpha": -1}, "alpha"),
        ({"lr": 0.1, "restart": "soft"}, "restart"),
        ({"lr": 0.1, "per": "row"}, "at least 2 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            ProximalGradient([w], **bad)


# The certificate of an attached run.


def test_certificate_is_zero_exactly_at_the_minimum(lasso):
    f, lipschitz, w = lasso
    model = nn.Linear(40, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    opt = torch.optim.SGD(model.parameters(), lr=1 / lipschitz)
    sharing = WeightSharing(model, opt, alpha=ALPHA, beta=BETA, certify_every=1)
    seen = []
    for _ in range(3000):
        opt.zero_grad()
        f(model.weight[0]).backward()
        now, before = sharing.certificate()["weight"], model.weight.detach().clone()
        opt.step()
        moved = float((model.weight.detach() - before).abs().max()) * lipschitz
        assert sharing.report()["weight"]["residual"] == now["residual"]
        assert now["residual"] == pytest.approx(moved, abs=1e-9)  # plain SGD: the step itself
        assert now["norm"] >= now["residual"]
        seen.append(now["residual"])
        if seen[-1] < 1e-6:
            break
    assert seen[-1] < 1e-6 < 1e-2 < seen[0]
    minimise(f, w, 600, lr=1 / lipschitz)
    torch.testing.assert_close(model.weight[0], w, rtol=0, atol=1e-4)


def test_certificate_does_not_depend_on_the_optimizer_and_counts_decay(mlp, batches):
    x, y = batches[0]
    rows = []
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    ):
        model = mlp(torch.float64)
        sharing = WeightSharing(model, make(model.parameters()), alpha=0.1)
        (nn.functional.mse_loss(model(x.double()), y.double())).backward()
        rows.append(sharing.certificate().rows)
        w = model[0].weight.detach()
        step = w - 0.1 * (model[0].weight.grad + 0.1 * w)
        want = float((w - ws.prox(step, 0.1, step=0.1)).abs().max() / 0.1)
        assert rows[-1][0]["residual"] == pytest.approx(want)
    assert rows[0] == rows[1] == rows[2]


def test_certificate_refuses_stale_gradients(mlp, batches):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, Rule("0.weight", alpha=0.1))
    with pytest.raises(RuntimeError, match="between backward"):
        sharing.certificate()
    model(batches[0][0]).sum().backward()
    sharing.certificate()
    opt.step()
    with pytest.raises(RuntimeError, match="between backward"):
        sharing.certificate()
    opt.zero_grad(set_to_none=False)
    model(batches[0][0]).sum().backward()
    assert len(sharing.certificate()) == 1
    sharing.remove()
    subgradient = WeightSharing(model, opt, Rule("0.weight", method=baselines.Subgradient(0.1)))
    assert len(subgradient.certificate()) == 0
