"""Where attaching to an optimizer goes wrong: a test for each trap."""

import copy
import pickle

import pytest
import torch
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing


def distinct(w):
    return len(w.detach().unique())


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def unchanged(model, before):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


# Mixed precision.

KINDS = {
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "fused-sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_moves_nothing(kind, unscale, mlp):
    model = mlp()
    opt = KINDS[kind](model.parameters())
    sharing = WeightSharing(model, opt, alpha=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for poison, steps in ((False, 1), (True, 1), (False, 2)):
        before = snapshot(model)
        opt.zero_grad()
        scaler.scale(model(torch.ones(2, 12)).sum()).backward()
        if poison:
            model[2].bias.grad[0] = float("inf")
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        assert unchanged(model, before) == poison
        assert sharing.steps == steps


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_training_is_unscaled_training(kind, mlp, batches):
    plain, scaled = mlp(torch.float64), mlp(torch.float64)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for model in (plain, scaled):
        opt = KINDS[kind](model.parameters())
        sharing = WeightSharing(model, opt, alpha=0.5, certify_every=1)
        for x, _ in batches[:5]:
            opt.zero_grad()
            loss = model(x.double()).square().mean()
            if model is plain:
                loss.backward()
                opt.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        model.residual = sharing.report()["0.weight"]["residual"]
    torch.testing.assert_close(scaled[0].weight, plain[0].weight, rtol=1e-9, atol=1e-12)
    assert scaled.residual == pytest.approx(plain.residual, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype, mlp, train):
    model = mlp(dtype)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, alpha=0.5)
    seen = []
    opt.register_step_pre_hook(lambda *_: seen.append(model[0].weight.detach() - 0.1 * model[0].weight.grad))
    train(model, opt, steps=3)
    w = model[0].weight.detach()
    assert w.dtype == dtype
    want = ws.prox(seen[-1], 0.5, step=0.1)
    torch.testing.assert_close(w, want, rtol=2e-2, atol=1e-3)
    assert sharing.report()["0.weight"]["distinct"] == distinct(w) < w.numel()


def test_float32_master_weights(mlp):
    model = mlp(torch.bfloat16)
    masters = {name: p.detach().float().requires_grad_() for name, p in model.named_parameters()}
    opt = torch.optim.SGD(masters.values(), lr=0.1)
    WeightSharing(masters.items(), opt, Rule("*.weight", alpha=0.5))
    for _ in range(3):
        model(torch.randn(4, 12, dtype=torch.bfloat16)).square().mean().backward()
        for name, p in model.named_parameters():
            masters[name].grad, p.grad = p.grad.float(), None
        opt.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    assert distinct(model[0].weight) <= distinct(masters["0.weight"]) < 192


# Learning rates and schedulers.


@pytest.mark.parametrize("number", [float, torch.tensor])
def test_the_learning_rate_is_that_of_the_right_group(number, mlp):
    model = mlp()
    before = snapshot(model)
    groups = [{"params": model[2].parameters()}, {"params": model[0].parameters(), "lr": number(0.5)}]
    opt = torch.optim.AdamW(groups, lr=number(0.1), weight_decay=0.0)
    WeightSharing(model, opt, alpha=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    for scale in (1.0, 0.5):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        opt.step()
        scheduler.step()
        for i, lr in ((0, 0.5), (2, 0.1)):
            want = ws.prox(before[i], 0.5, step=lr * scale)
            torch.testing.assert_close(model[i].weight.detach(), want, rtol=1e-6, atol=1e-7)
        before = snapshot(model)


def test_groups_without_a_learning_rate(mlp):
    class Plain(torch.optim.Optimizer):
        def step(self, closure=None):
            pass

    model = mlp()
    opt = Plain(model.parameters(), {})
    with pytest.raises(ValueError, match="no learning rate"):
        WeightSharing(model, opt, alpha=0.1)
    assert not opt._optimizer_step_post_hooks
    WeightSharing(model, opt, alpha=0.1, step=0.5)


def test_a_step_with_learning_rate_zero_is_none(mlp, train):
    """torch.distributed.checkpoint takes one to make optimizers fill their state before it loads them."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    models = [mlp(), mlp()]
    opts = [torch.optim.AdamW(m.parameters(), lr=0.02) for m in models]
    rules = [
        Rule("0.weight", alpha=0.5, coupling="decoupled", schedule=ws.schedules.warmup(8)),
        Rule("2.weight", method=ws.baselines.Magnitude(0.5)),
    ]
    sharings = [WeightSharing(m, o, rules) for m, o in zip(models, opts)]
    train(models[0], opts[0], steps=4)
    saved = copy.deepcopy(get_state_dict(models[0], opts[0]))
    sharings[1].load_state_dict(sharings[0].state_dict())  # first, so that a step would count
    before = snapshot(models[1])
    get_state_dict(models[1], opts[1])
    assert unchanged(models[1], before)
    set_state_dict(models[1], opts[1], model_state_dict=saved[0], optim_state_dict=saved[1])
    assert sharings[1].steps == 4
    for model, opt in zip(models, opts):
        train(model, opt, steps=4)
    assert unchanged(models[1], snapshot(models[0]))


def test_a_group_whose_learning_rate_is_zero_stands_still(mlp, train):
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    opt = torch.optim.SGD(groups, lr=0.1)
    sharing = WeightSharing(model, opt, alpha=2.0, coupling="decoupled", step=0.5)
    before = model[0].weight.detach().clone()
    train(model, opt, steps=2)
    assert torch.equal(model[0].weight, before)
    assert distinct(model[2].weight) < 48
    assert sharing.steps == 2


# Which parameters move.


def test_without_a_gradient_nothing_moves(mlp):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightSharing(model, opt, alpha=0.5)
    model(torch.ones(2, 12)).sum().backward()
    opt.zero_grad(set_to_none=True)
    model[2].weight.grad = torch.ones_like(model[2].weight)  # only this one took part
    before = snapshot(model)
    opt.step()
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[2].weight, before[2])


def test_frozen_parameters_are_left_alone_until_thawed(mlp, train):
    model = mlp()
    model[0].weight.requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightSharing(model, opt, alpha=2.0)
    before = model[0].weight.clone()
    train(model, opt, steps=3)
    assert torch.equal(model[0].weight, before)
    model[0].weight.requires_grad_(True)
    train(model, opt, steps=3)
    assert distinct(model[0].weight) < 192


def test_shared_parameters_are_treated_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

    model = Tied()
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    sharing = WeightSharing(model, opt, alpha=0.1)
    assert [u.name for u in sharing.units] == ["a.weight"]
    want = ws.prox(model.a.weight.detach(), 0.1)
    model.a.weight.grad = torch.zeros_like(model.a.weight)
    opt.step()
    assert torch.equal(model.a.weight.detach(), want)
    sharing.remove()
    with pytest.raises(ValueError, match="in two rules"):
        WeightSharing(model, opt, [Rule("a.weight", alpha=1.0), Rule("b.weight", alpha=1.0)])
    assert [u.name for u in WeightSharing(model, opt, Rule("b.weight", alpha=1.0)).units] == ["a.weight"]


def test_a_weight_tied_to_an_embedding_is_left_out_unless_named():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "fc": nn.Linear(4, 4), "head": nn.Linear(4, 5)})
    model["head"].weight = model["embed"].weight
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, alpha=0.1)
    assert [u.name for u in sharing.units] == ["fc.weight"]
    assert [u.name for u in WeightSharing(model, opt, Rule("head.weight", alpha=0.1)).units] == [
        "embed.weight"
    ]


def test_several_optimizers(mlp, batches):
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    sharings = [WeightSharing(model, opt, alpha=2.0) for opt in (first, second)]
    assert [[u.name for u in s.units] for s in sharings] == [["0.weight"], ["2.weight"]]
    model(batches[0][0]).square().mean().backward()
    before = snapshot(model)
    second.step()
    assert torch.equal(model[0].weight, before[0])
    first.step()
    assert distinct(model[0].weight) < 192
    assert [s.steps for s in sharings] == [1, 1]


# How the step is called.


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.LBFGS(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)]
)
@pytest.mark.parametrize("keyword", [False, True])
def test_closures(make, keyword, mlp, batches):
    model = mlp()
    opt = make(model.parameters())
    sharing = WeightSharing(model, opt, alpha=2.0, certify_every=1)

    def closure():
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(batches[0][0]), batches[0][1])
        loss.backward()
        return loss

    loss = opt.step(closure=closure) if keyword else opt.step(closure)
    assert float(loss.detach()) > 0
    assert sharing.steps == 1
    assert distinct(model[0].weight) < 192
    assert sharing.report()["0.weight"]["residual"] > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_within_a_step_is_one_step(compiled, mlp, train):
    """A subclass that calls super().step() runs the hooks of both."""

    class Noisy(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                model[0].weight.add_(0.01)  # after the inner step, within the outer one

    want, model = mlp(), mlp()
    train(want, torch.optim.SGD(want.parameters(), lr=0.1), steps=1)
    opt = Noisy(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, alpha=2.0)
    if compiled:
        opt.step = torch.compile(opt.step, backend="eager")
    train(model, opt, steps=1)
    assert sharing.steps == 1
    assert torch.equal(model[0].weight, ws.prox(want[0].weight.detach() + 0.01, 2.0, step=0.1))


def test_clipping_and_accumulation(mlp, batches):
    whole, parts = mlp(torch.float64), mlp(torch.float64)
    for model, chunks in ((whole, 1), (parts, 4)):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        sharing = WeightSharing(model, opt, alpha=2.0)
        for x, y in batches[:5]:
            for a, b in zip(x.chunk(chunks), y.chunk(chunks)):
                (nn.functional.mse_loss(model(a.double()), b.double()) / chunks).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
            opt.zero_grad()
        assert sharing.steps == 5
    torch.testing.assert_close(whole[0].weight, parts[0].weight)
    assert distinct(parts[0].weight) < 192


def test_compiled_models_and_compiled_steps(mlp, train):
    eager, model = mlp(), mlp()
    opt = torch.optim.SGD(eager.parameters(), lr=0.1)
    WeightSharing(eager, opt, alpha=2.0)
    train(eager, opt, steps=3)

    compiled = torch.compile(model, backend="eager")
    opt = torch.optim.SGD(compiled.parameters(), lr=0.1)
    sharing = WeightSharing(compiled, opt, [Rule("0.weight", alpha=2.0), Rule("2.weight", alpha=2.0)])
    opt.step = torch.compile(opt.step, backend="eager")
    train(compiled, opt, steps=3)
    assert sharing.steps == 3
    assert unchanged(model, snapshot(eager))


def test_in_place_changes_do_not_break_autograd(mlp):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightSharing(model, opt, alpha=2.0)
    loss = model(torch.ones(2, 12)).sum()
    loss.backward()
    opt.step()
    assert model[0].weight.requires_grad
    assert model[0].weight.is_leaf
    stale = model(torch.ones(2, 12)).sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()  # autograd notices, as after any optimizer step


def test_a_step_that_diverged_names_the_tensor(mlp):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightSharing(model, opt, alpha=2.0)
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan"))
    with pytest.raises(ValueError, match=r"0\.weight, after optimizer step 0.*finite"):
        opt.step()


# Copies and reloads.


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_attached_to_copies(copying, mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharing = WeightSharing(model, opt, [Rule(nn.Linear, alpha=2.0)])
    train(model, opt, steps=3)
    model2, opt2, sharing2 = copying((model, opt, sharing))
    assert sharing2.attached
    assert sharing2.steps == 3
    before = snapshot(model)
    train(model2, opt2, steps=3)
    assert unchanged(model, before)
    train(model, opt, steps=3)
    assert unchanged(model, snapshot(model2))
    alone = copying(sharing)  # brings its own model and optimizer
    train(alone.model, alone.optimizer, steps=1)
    assert alone.steps == 7
    sharing.remove()
    assert not copying(sharing).attached


def test_optimizer_state_may_be_loaded_after_attaching(mlp, train):
    donor, model = mlp(), mlp()
    opt = torch.optim.SGD(donor.parameters(), lr=0.02, momentum=0.9)
    train(donor, opt, steps=2)
    mine = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharing = WeightSharing(model, mine, alpha=2.0)
    model.load_state_dict(donor.state_dict())
    mine.load_state_dict(opt.state_dict())  # replaces the param groups: the learning rate is 0.02 now
    before = model[0].weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    mine.state.clear()
    mine.step()
    assert torch.equal(model[0].weight.detach(), ws.prox(before, 2.0, step=0.02))
    assert sharing.steps == 1


def test_replaced_parameters_are_noticed(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    WeightSharing(model, opt, alpha=2.0)
    model.load_state_dict(mlp().state_dict(), assign=True)
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match=r"'0\.weight' is no longer the tensor"):
        opt.step()


def test_wrapped_optimizers_are_unwrapped(mlp, train):
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, Wrapper(opt), alpha=2.0)
    train(model, opt, steps=1)
    assert sharing.steps == 1
    with pytest.raises(TypeError, match="must be a torch.optim.Optimizer, got list"):
        WeightSharing(model, [opt], alpha=2.0)


def test_accelerate(mlp, batches):
    """Its wrappers of model and optimizer, which steps once for two batches."""
    accelerate = pytest.importorskip("accelerate")
    tied, by_hand = mlp(), mlp()
    opt = torch.optim.AdamW(tied.parameters(), lr=0.01)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, wrapped = accelerator.prepare(tied, opt)
    sharing = WeightSharing(model, wrapped, Rule("0.weight", alpha=2.0))
    plain = torch.optim.AdamW(by_hand.parameters(), lr=0.01)
    for i, (x, y) in enumerate(batches[:6]):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            wrapped.step()
            wrapped.zero_grad()
        (nn.functional.mse_loss(by_hand(x), y) / 2).backward()
        if i % 2:
            plain.step()
            plain.zero_grad()
            with torch.no_grad():
                by_hand[0].weight.copy_(ws.prox(by_hand[0].weight, 2.0, step=0.01))
    assert sharing.steps == 3
    assert unchanged(tied, snapshot(by_hand))
