"""Frozen clusters stay tied, bitwise, and follow the gradient of the shared values."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from weightshare.training import Rule, WeightSharing, freeze_clusters, unfreeze

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
}


def quantise_(w, step=0.2):
    """Make ties and zeros."""
    with torch.no_grad():
        w.copy_((w / step).round() * step)


def pattern(w):
    """Which weights are equal: for each the first that it is equal to."""
    flat = w.detach().flatten()
    return (flat[:, None] == flat).int().argmax(1).view(w.shape)


def loop(model, opt, batches, steps=20):
    losses = []
    for x, y in batches[:steps]:

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        losses.append(float(opt.step(closure).detach()))
    return losses


# A warm optimizer's state is merged; that of the last two does not belong to single weights.
COLD_ONLY = ("lbfgs", "adafactor")
CASES = [(name, warm) for name in OPTIMIZERS for warm in (False, True) if not (warm and name in COLD_ONLY)]


@pytest.mark.parametrize(("name", "warm"), CASES)
def test_ties_hold_bitwise_under_any_optimizer(name, warm, mlp, batches):
    model = mlp()
    opt = OPTIMIZERS[name](model.parameters())
    if warm:
        loop(model, opt, batches, steps=3)
    quantise_(model[0].weight)
    before, values = pattern(model[0].weight), model[0].weight.detach().clone()
    frozen = freeze_clusters(model, "0.weight", optimizer=opt if warm else None)
    loop(model, opt, batches)
    w = model[0].weight.detach()
    assert torch.equal(pattern(w), before)
    assert (w[values == 0] == 0).all()
    assert (values == 0).any()
    assert not torch.equal(w, values)
    assert "0.weight" in repr(frozen)
    unfreeze(model)
    loop(model, opt, batches, steps=1)
    assert len(model[0].weight.unique()) > len(before.unique())


class Shared(nn.Module):
    """The same network with the shared values as its parameters: what freezing must be equal to."""

    def __init__(self, model):
        super().__init__()
        w = model[0].weight.detach()
        values, self.ids = w.unique(return_inverse=True)
        self.alive = (values != 0).to(w.dtype)
        self.values, self.rest, self.bias = nn.Parameter(values), model[2], model[0].bias

    def forward(self, x):
        weight = (self.values * self.alive)[self.ids]
        return self.rest(torch.tanh(nn.functional.linear(x, weight, self.bias)))


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), OPTIMIZERS["adam"]])
@pytest.mark.parametrize("compiled", [False, True])
def test_sum_trains_the_shared_values(make, compiled, mlp, batches):
    tied, other = mlp(torch.float64), mlp(torch.float64)
    quantise_(tied[0].weight)
    quantise_(other[0].weight)
    shared = Shared(other)
    freeze_clusters(tied, "0.weight")
    batches = [(x.double(), y.double()) for x, y in batches]
    run = torch.compile(tied, backend="aot_eager") if compiled else tied
    loop(run, make(run.parameters()), batches)
    loop(shared, make(shared.parameters()), batches)
    want = (shared.values * shared.alive)[shared.ids]
    torch.testing.assert_close(tied[0].weight, want, rtol=1e-7, atol=1e-9)
    unfreeze(tied)


def test_mean_is_gradient_descent_among_tied_weights(mlp, batches):
    model = mlp(torch.float64)
    quantise_(model[0].weight)
    w0, ids = model[0].weight.detach().clone(), pattern(model[0].weight)
    freeze_clusters(model, "0.weight", gradient="mean")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = mlp(torch.float64)
    quantise_(twin[0].weight)
    nn.functional.mse_loss(twin(batches[0][0].double()), batches[0][1].double()).backward()
    raw = twin[0].weight.grad
    loop(model, opt, [(x.double(), y.double()) for x, y in batches], steps=1)
    for k in ids.unique():
        mine = ids == k
        want = w0[mine] - (0.1 * raw[mine].mean() if w0[mine][0] != 0 else 0.0)
        torch.testing.assert_close(model[0].weight.detach()[mine], want)
    unfreeze(model)


def test_accumulated_gradients_are_summed_once(mlp, batches):
    whole, parts = mlp(torch.float64), mlp(torch.float64)
    for model, chunks in ((whole, 1), (parts, 4)):
        quantise_(model[0].weight)
        freeze_clusters(model)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x, y in batches[:3]:
            opt.zero_grad()
            for a, b in zip(x.chunk(chunks), y.chunk(chunks)):
                (nn.functional.mse_loss(model(a.double()), b.double()) / chunks).backward()
            opt.step()
        unfreeze(model)
    torch.testing.assert_close(whole[0].weight, parts[0].weight)


def test_momentum_is_merged_as_if_it_had_seen_the_common_gradients(mlp, batches):
    early, late = mlp(torch.float64), mlp(torch.float64)
    momenta = []
    for model, before in ((early, True), (late, False)):
        quantise_(model[0].weight)
        opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        if before:
            freeze_clusters(model, "0.weight")
        loop(model, opt, [(x.double(), y.double()) for x, y in batches], steps=4)
        if not before:
            freeze_clusters(model, "0.weight", optimizer=opt)
        momenta.append(opt.state[model[0].weight]["momentum_buffer"])
        unfreeze(model)
    torch.testing.assert_close(*momenta)


def test_second_moments_are_merged_to_their_upper_bound():
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 0.0]]))
    opt = torch.optim.Adam(model.parameters())
    model.weight.grad = torch.tensor([[3.0, 4.0, 5.0]])
    with torch.no_grad():
        before = model.weight.clone()
    opt.step()
    with torch.no_grad():
        model.weight.copy_(before)
    state = opt.state[model.weight]
    state["exp_avg_sq"].copy_(torch.tensor([[9.0, 16.0, 25.0]]))
    freeze_clusters(model, optimizer=opt)
    assert state["exp_avg_sq"].tolist() == [[49.0, 49.0, 0.0]]
    torch.testing.assert_close(state["exp_avg"], torch.tensor([[0.7, 0.7, 0.0]]))
    unfreeze(model)


@pytest.mark.parametrize("per", ["row", 5])
def test_ties_within_vectors_only(per, mlp, batches):
    model = mlp()
    quantise_(model[0].weight)
    parts = list(model[0].weight) if per == "row" else model[0].weight.flatten().split(per)
    before = [pattern(part) for part in parts]
    freeze_clusters(model, "0.weight", per=per)
    loop(model, torch.optim.SGD(model.parameters(), lr=1e-2), batches)
    parts = list(model[0].weight) if per == "row" else model[0].weight.flatten().split(per)
    assert all(torch.equal(pattern(a), b) for a, b in zip(parts, before, strict=True))
    assert len(model[0].weight.unique()) > max(len(b.unique()) for b in before)
    unfreeze(model)


def test_a_group_is_one_vector_also_when_frozen(mlp, batches):
    """The shared values get the gradients of all tensors, and stay equal across them."""
    model, other = mlp(torch.float64), mlp(torch.float64)
    for m in (model, other):
        quantise_(m[0].weight)
        quantise_(m[2].weight)
    weights = [model[0].weight, model[2].weight]

    def joined():
        return torch.cat([w.detach().flatten() for w in weights])

    before, ties = joined(), pattern(joined())
    frozen = freeze_clusters(model, Rule("*.weight", alpha=1.0, per="group"))
    assert f"with {len(before.unique()) - 1} values: 0.weight, 2.weight" in repr(frozen)
    batches = [(x.double(), y.double()) for x, y in batches]
    loop(model, torch.optim.SGD(model.parameters(), lr=1e-3), batches, steps=1)
    loop(other, torch.optim.SGD(other.parameters(), lr=0.0), batches, steps=1)
    slopes = torch.cat([other[0].weight.grad.flatten(), other[2].weight.grad.flatten()])
    common = torch.zeros(len(before), dtype=torch.float64).index_add_(0, ties, slopes)[ties]
    torch.testing.assert_close(joined(), before - 1e-3 * common * (before != 0))
    torch.testing.assert_close(torch.cat([w.grad.flatten() for w in weights]), slopes)  # given back
    for make in OPTIMIZERS.values():
        loop(model, make(model.parameters()), batches, steps=3)
        assert torch.equal(pattern(joined()), ties)
    unfreeze(model)


def test_the_state_of_a_group_is_merged_together(mlp, batches):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    quantise_(model[0].weight)
    quantise_(model[2].weight)
    loop(model, opt, batches, steps=2)
    states = [opt.state[model[i].weight]["momentum_buffer"] for i in (0, 2)]
    ties = pattern(torch.cat([model[i].weight.detach().flatten() for i in (0, 2)]))
    before = torch.cat([s.flatten() for s in states])
    freeze_clusters(model, "*.weight", per="group", gradient="mean", optimizer=opt)
    merged = torch.cat([s.flatten() for s in states])
    alive = torch.cat([model[i].weight.detach().flatten() for i in (0, 2)]) != 0
    for k in ties.unique():
        want = before[ties == k].mean() * alive[k]
        torch.testing.assert_close(merged[ties == k], want.expand(int((ties == k).sum())))
    unfreeze(model)
    del opt.state[model[2].weight]
    with pytest.raises(ValueError, match=r"different state for 0\.weight, 2\.weight, which share values"):
        freeze_clusters(model, "*.weight", per="group", optimizer=opt)


def test_a_group_that_one_optimizer_cannot_keep(mlp, batches):
    model = mlp()
    freeze_clusters(model, "*.weight", per="group")
    with pytest.raises(ValueError, match="share values, but this optimizer has not all of them"):
        loop(model, torch.optim.SGD(model[0].parameters(), lr=0.1), batches, steps=1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="not all of them require a gradient"):
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batches, steps=1)
    unfreeze(model)


def test_the_rules_of_training_say_what_is_frozen(mlp, batches):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    rules = [Rule("0.weight", alpha=0.5, per="row"), Rule(nn.Linear, alpha=1.0)]
    sharing = WeightSharing(model, opt, rules)
    loop(model, opt, batches, steps=20)
    sharing.remove()
    rows, whole = [pattern(row) for row in model[0].weight], pattern(model[2].weight)
    frozen = freeze_clusters(model, sharing.rules, optimizer=opt)
    assert "0.weight, 2.weight" in repr(frozen)
    loop(model, opt, batches, steps=5)
    assert all(torch.equal(pattern(a), b) for a, b in zip(model[0].weight, rows))
    assert torch.equal(pattern(model[2].weight), whole)
    unfreeze(model)
    for bad, message in (([rules[0], "2.weight"], "not both"), (rules, "rules have their own per")):
        with pytest.raises((TypeError, ValueError), match=message):
            freeze_clusters(model, bad, per="row")


def test_nothing_of_a_frozen_model_shows(mlp, batches):
    """Copies, pickles, compiled wrappers and exported programs are those of the plain model."""
    model = mlp()
    quantise_(model[0].weight)
    freeze_clusters(torch.compile(model, backend="eager"))
    assert not model[0].weight._backward_hooks
    assert not model[0].weight._post_accumulate_grad_hooks
    copied = copy.deepcopy(model)
    loop(copied, torch.optim.SGD(copied.parameters(), lr=0.1), batches, steps=1)
    assert len(copied[0].weight.unique()) > len(model[0].weight.unique())
    assert [node.target for node in torch.export.export(model, (batches[0][0],)).graph.nodes] == [
        node.target for node in torch.export.export(mlp(), (batches[0][0],)).graph.nodes
    ]
    unfreeze(model)  # the model inside of what was frozen


def test_a_step_that_fails_gives_no_stale_gradient_back(mlp, batches):
    model = mlp()
    quantise_(model[0].weight)
    freeze_clusters(model, "0.weight")

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("planted")
            return super().step(closure)

    opt = Failing(model.parameters(), lr=1e-3)
    opt.fails = True
    with pytest.raises(RuntimeError, match="planted"):
        loop(model, opt, batches, steps=1)
    opt.fails = False
    twin = mlp()
    quantise_(twin[0].weight)
    freeze_clusters(twin, "0.weight")
    for m, o in ((model, opt), (twin, torch.optim.SGD(twin.parameters(), lr=1e-3))):
        loop(m, o, batches, steps=2)
    assert torch.equal(model[0].weight, twin[0].weight)
    assert torch.equal(model[0].weight.grad, twin[0].weight.grad)
    unfreeze(model)
    unfreeze(twin)


def test_healing_after_sharing_lowers_the_loss(mlp, batches):
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    sharing = WeightSharing(model, opt, alpha=1.0, rho=0.0)
    shared = loop(model, opt, batches * 3, steps=120)
    with pytest.raises(ValueError, match="remove"):
        freeze_clusters(model, optimizer=opt)
    sharing.remove()
    values = [len(model[i].weight.unique()) for i in (0, 2)]
    freeze_clusters(model, optimizer=opt)
    healed = loop(model, opt, batches * 3, steps=120)
    assert [len(model[i].weight.unique()) for i in (0, 2)] <= values
    assert sum(healed[-20:]) < sum(shared[-20:])
    unfreeze(model)


def test_state_dict_is_unchanged_and_nothing_is_kept_alive(mlp, batches):
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    model = mlp()
    keys, count = list(model.state_dict()), len(hooks)
    freeze_clusters(model)
    assert list(model.state_dict()) == keys
    with pytest.raises(ValueError, match="frozen already"):
        freeze_clusters(model)
    here = weakref.ref(model)
    del model
    gc.collect()
    assert here() is None
    assert len(hooks) == count


def test_errors(mlp, batches):
    model = mlp()
    with pytest.raises(ValueError, match="not frozen"):
        unfreeze(model)
    with pytest.raises(ValueError, match="did you mean"):
        freeze_clusters(model, gradient="means")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.state[model[0].weight]["mystery"] = torch.zeros_like(model[0].weight)
    with pytest.raises(ValueError, match="merge the optimizer state 'mystery'"):
        freeze_clusters(model, optimizer=opt)
    freeze_clusters(model)  # nothing was left behind
    WeightSharing(model, opt, Rule("0.weight", alpha=0.1))
    with pytest.raises(ValueError, match=r"'0\.weight' is frozen"):
        loop(model, opt, batches, steps=1)
    unfreeze(model)
