"""The attached loop is the hand-written one."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import weightshare as ws
from weightshare.training import Rule, WeightSharing, schedules

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    **{
        name.lower(): partial(getattr(torch.optim, name), lr=0.05)
        for name in ("Adadelta", "Adafactor", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop")
    },
    "lr-tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
}


def distinct(w):
    return len(w.detach().unique())


@pytest.mark.parametrize("coupling", ["scaled", "decoupled"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_hand_written_loop(name, coupling, mlp, train):
    alpha, beta, rho = 2.0, 0.02, 0.3
    attached, by_hand = mlp(), mlp()
    opt = OPTIMIZERS[name](attached.parameters())
    WeightSharing(attached, opt, alpha=alpha, beta=beta, rho=rho, coupling=coupling)
    train(attached, opt)

    opt = OPTIMIZERS[name](by_hand.parameters())

    def prox(_):
        for layer in (by_hand[0], by_hand[2]):
            with torch.no_grad():
                lr = float(opt.param_groups[0]["lr"])
                layer.weight.copy_(ws.prox(layer.weight, alpha, beta, rho, step=lr, coupling=coupling))

    train(by_hand, opt, during=prox)
    for a, b in zip(attached.parameters(), by_hand.parameters()):
        assert torch.equal(a, b)
    assert distinct(attached[0].weight) < attached[0].weight.numel()
    assert distinct(attached[0].bias) == attached[0].bias.numel()  # biases are left out


def test_remove_and_pause(mlp, train):
    plain, model = mlp(), mlp()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, alpha=0.1)
    with sharing.paused():
        train(model, opt, steps=5)
    with pytest.raises(KeyError), sharing.paused():
        raise KeyError  # the pause ends also when its block fails
    assert sharing.steps == 0
    with sharing.paused(), sharing.paused():
        pass
    sharing.remove()
    sharing.remove()
    assert not sharing.attached
    twin = mlp()
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), steps=5)
    assert torch.equal(twin[0].weight, model[0].weight)
    WeightSharing(model, opt, alpha=0.1)  # may attach again after remove()
    train(model, opt, steps=1)
    assert distinct(model[0].weight) < model[0].weight.numel()


def vectors(w, per):
    if per == "row":
        return list(w.flatten(1))
    if per == "column":
        return list(w.flatten(1).T)
    if isinstance(per, int):
        return list(w.flatten().split(per))
    return [w.flatten()]


@pytest.mark.parametrize("layer", [nn.Linear(7, 5), nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(4, 3, 2)])
@pytest.mark.parametrize("per", ["tensor", "row", "column", 4, 1000])
@pytest.mark.parametrize("channels_last", [False, True])
def test_per_vector(layer, per, channels_last):
    layer = copy.deepcopy(layer)
    if channels_last and isinstance(layer, nn.Conv2d):
        layer = layer.to(memory_format=torch.channels_last)
    want = [ws.prox(v, 0.3) for v in vectors(layer.weight.detach().clone(), per)]
    opt = torch.optim.SGD(layer.parameters(), lr=1.0)
    WeightSharing(layer, opt, alpha=0.3, per=per)
    layer.weight.grad = torch.zeros_like(layer.weight)
    opt.step()
    for v, u in zip(vectors(layer.weight.detach(), per), want, strict=True):
        torch.testing.assert_close(v, u, rtol=0, atol=1e-7)
        assert distinct(v) == distinct(u)


def test_group_is_one_vector(mlp):
    model = mlp()
    want = ws.prox(torch.cat([model[0].weight.detach().flatten(), model[2].weight.detach().flatten()]), 0.3)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    WeightSharing(model, opt, Rule("*.weight", alpha=0.3, per="group"))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    got = torch.cat([model[0].weight.detach().flatten(), model[2].weight.detach().flatten()])
    assert torch.equal(got, want)


def test_group_needs_one_learning_rate(mlp):
    model = mlp()
    opt = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1.0}], lr=0.1
    )
    with pytest.raises(ValueError, match="one learning rate"):
        WeightSharing(model, opt, Rule("*.weight", alpha=0.3, per="group"))


def test_schedules_reach_the_step(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = Rule(
        nn.Linear, alpha=schedules.linear(0.0, 1.0, 10), rho=lambda t: t / 100, schedule=schedules.warmup(2)
    )
    sharing = WeightSharing(model, opt, rule)
    seen = []
    train(model, opt, steps=4, during=lambda _: seen.append(dict(sharing.units[0].values)))
    assert [v["alpha"] for v in seen] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [v["rho"] for v in seen] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    bad = Rule("0.weight", alpha=lambda t: -1.0)
    sharing.remove()
    WeightSharing(model, opt, bad)
    with pytest.raises(ValueError, match=r"schedule of alpha .* got -1\.0 at step 0"):
        train(model, opt, steps=1)


def test_step_size_given(mlp):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    want = ws.prox(model[0].weight.detach(), 0.3, step=0.5)
    WeightSharing(model, opt, Rule("0.weight", alpha=0.3), step=lambda group: 5 * group["lr"])
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    opt.step()
    assert torch.equal(model[0].weight.detach(), want)


def test_report_counts_and_prints(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, alpha=0.05, beta=0.01)
    train(model, opt)
    for table in (sharing.report(), ws.report(model)):
        row, w = table["0.weight"], model[0].weight.detach()
        assert (row["weights"], row["distinct"], row["zero"]) == (w.numel(), distinct(w), int((w == 0).sum()))
        assert row["R"] == pytest.approx(float(ws.penalty(w.double())))
        assert "0.weight" in repr(table)
        assert len(repr(table).splitlines()) == len(table) + 1
        assert table.rows[-1]["tensor"] == "total"
    assert sharing.report().scalars()["0.weight/alpha"] == 0.05


def test_a_log_gets_the_numbers(mlp, train, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer, seen = tensorboard.SummaryWriter(tmp_path), []

    def log(numbers, step):  # the signature of wandb.log
        seen.append((step, numbers))
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, Rule("0.weight", target_bits=3.0, alpha=0.1), log=log, log_every=4)
    train(model, opt, steps=10)
    writer.close()
    assert [step for step, _ in seen] == [4, 8]
    assert all(type(value) in (int, float) for value in seen[-1][1].values())
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("sharing/0.weight/distinct")] == [4, 8]
    assert "sharing/total/weights" in events.Tags()["scalars"]
    assert copy.deepcopy(sharing).log is None
