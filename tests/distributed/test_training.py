"""Weight sharing attached to models that several ranks train together."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import distribute_tensor

import weightshare as ws
from weightshare.training import baselines

BIG, SMALL = "0.weight", "2.weight"  # 41,280 weights, enough for the tables; and 480, gathered at once


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(258, 160), nn.Tanh(), nn.Linear(160, 3)).to(dtype)


def rules(per):
    if per == "group":
        return [ws.Rule([BIG, SMALL], alpha=0.5, beta=1e-3, rho=0.5, per="group")]
    return [ws.Rule([BIG, SMALL], alpha=0.5, beta=1e-3, rho=0.5, per=per)]


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, steps, seed=1, after=None):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(8, 258, generator=g)
        optimizer.zero_grad()
        (model(x.to(next(model.parameters()).dtype)) - x[:, :3]).square().mean().backward()
        optimizer.step()
        if after is not None:
            after()


def full(model):
    """A copy of every parameter, gathered."""
    found = {}
    for name, p in model.named_parameters():
        found[name] = (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
    return found


def sent(weights):
    """What can go from process to process without shared memory."""
    return {name: w.numpy() for name, w in weights.items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def sharded(model):
    fully_shard(model[0])
    fully_shard(model)
    return model


def by_hand(model, per):
    """Gather the weights, take the prox as one process does, cut it up again."""

    @torch.no_grad()
    def after():
        pair = [dict(model.named_parameters())[name] for name in (BIG, SMALL)]
        whole = [p.full_tensor() for p in pair]
        c = {"alpha": 0.5, "beta": 1e-3, "rho": 0.5, "step": 0.05}
        if per == "group":
            joined = ws.prox(torch.cat([w.reshape(-1) for w in whole]), **c)
            new = [part.view(w.shape) for part, w in zip(joined.split([w.numel() for w in whole]), whole)]
        elif isinstance(per, int):
            new = [torch.cat([ws.prox(b, **c) for b in w.view(-1).split(per)]).view(w.shape) for w in whole]
        else:
            new = [ws.prox(w, **c, dim={"tensor": None, "row": 1, "column": 0}[per]) for w in whole]
        for p, w in zip(pair, new):
            p.copy_(distribute_tensor(w, p.device_mesh, p.placements))

    return after


def on_rank_fsdp2(rank, ranks, per):
    model = sharded(model_of())
    optimizer = optimizer_of(model)
    sharing = ws.WeightSharing(model, optimizer, rules(per))
    train(model, optimizer, 4)
    reference = sharded(model_of())
    train(reference, optimizer_of(reference), 4, after=by_hand(reference, per))
    assert_same(full(model), full(reference))
    if ranks != 3:  # halves of equal gradients add up exactly, so it is one process's training, too
        single = model_of()
        alone = optimizer_of(single)
        other = ws.WeightSharing(single, alone, rules(per))
        train(single, alone, 4)
        assert_same(full(model), full(single))
        rows, wanted = list(sharing.report()), list(other.report())
        exchanged = [row.pop("exchanged", 0) for row in rows]
        assert rows == wanted
        assert all(exchanged[:-1]) == (ranks > 1)


@pytest.mark.parametrize("per", ["tensor", "group", "row", "column", 100])
def test_fsdp2(ranks, per):
    ranks.run(on_rank_fsdp2, per)


def on_rank_fsdp1(rank, ranks):
    """The first FSDP would leave to every rank a vector of its own: refused, where it does cut."""
    flat = FullyShardedDataParallel(model_of(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = optimizer_of(flat)
    if ranks == 1:
        ws.WeightSharing(flat, optimizer, rules("tensor"))
        train(flat, optimizer, 4)
        assert len(flat.module[0].weight.unique()) < 41_280
        return
    for call in (
        lambda: ws.WeightSharing(flat, optimizer, rules("tensor")),
        lambda: ws.report(nn.Sequential(flat)),
        lambda: ws.freeze_clusters(flat),
    ):
        with pytest.raises(ValueError, match=r"is a FullyShardedDataParallel.*use fully_shard \(FSDP2\)"):
            call()
    assert not optimizer._optimizer_step_post_hooks


def test_fsdp1_is_refused(ranks):
    if ranks.count < 3:
        ranks.run(on_rank_fsdp1)


def on_rank_scaler(rank, ranks):
    """An overflow in one rank's shard makes all of them skip the step."""
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    ):
        model = sharded(model_of())
        optimizer = make(model.parameters())
        sharing = ws.WeightSharing(model, optimizer, rules("tensor"), certify_every=1)
        scaler, steps = torch.amp.GradScaler("cpu", init_scale=4.0), []
        for poison in (False, True, False):
            before = full(model)
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 258)).sum()).backward()
            if poison and rank == 1:
                model[0].weight.grad.to_local()[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            steps.append(sharing.steps)
            assert torch.equal(full(model)[BIG], before[BIG]) == poison
        assert steps == [1, 1, 2]


def test_a_step_that_all_ranks_skip(two):
    two.run(on_rank_scaler)


def on_rank_extras(rank, ranks):
    """bf16, a controller, the certificate, other methods."""
    model, single = sharded(model_of()), model_of()
    for m in (model, single):
        optimizer = optimizer_of(m)
        sharing = ws.WeightSharing(
            m, optimizer,
            [ws.Rule(BIG, alpha=1e-3, target_bits=5.0), ws.Rule(SMALL, method=baselines.Magnitude(0.5))],
            certify_every=1,
        )  # fmt: skip
        train(m, optimizer, 12)
        sharing.told = [{k: v for k, v in row.items() if k != "exchanged"} for row in sharing.report()]
        m.told = sharing.told
    assert_same(full(model), full(single))
    first, second = model.told, single.told
    assert first[0]["residual"] == second[0]["residual"] > 0
    assert first == second
    # In bf16 torch's SGD rounds the tail of a tensor otherwise than its bulk, and shards have other tails:
    # so the reference is sharded, too.
    half, reference = (sharded(model_of(torch.bfloat16)) for _ in range(2))
    optimizer = optimizer_of(half)
    ws.WeightSharing(half, optimizer, rules("tensor"))
    train(half, optimizer, 2)
    train(reference, optimizer_of(reference), 2, after=by_hand(reference, "tensor"))
    assert_same(full(half), full(reference))


def test_fsdp2_with_everything(two):
    two.run(on_rank_extras)


def on_rank_full_batch(rank, ranks, per):
    """The accelerated optimizer: its iterates, its residual and its restarts."""
    x = torch.randn(8, 258, generator=torch.Generator().manual_seed(5))
    told = []
    for model in (sharded(model_of()), model_of()):
        weights = [p for name, p in model.named_parameters() if name in (BIG, SMALL)]
        rest = [p for name, p in model.named_parameters() if name not in (BIG, SMALL)]
        groups = [{"params": weights, "alpha": 0.05, "beta": 1e-3, "per": per}, {"params": rest}]
        optimizer = ws.optim.ProximalGradient(groups, lr=0.3)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) - x[:, :3]).square().mean()
            loss.backward()
            return loss

        residuals = []
        for _ in range(25):
            optimizer.step(closure)
            residuals.append(optimizer.residual)
        told.append((full(model), residuals, optimizer.restarts))
    assert_same(told[0][0], told[1][0])
    assert told[0][1:] == told[1][1:]
    assert len(told[0][0][BIG].unique()) < 41_280 or per == "row"


@pytest.mark.parametrize("per", ["tensor", "group", "row"])
def test_full_batch_in_shards(two, per):
    two.run(on_rank_full_batch, per)


def on_rank_bytes(rank, ranks):
    """With ties, the prox and a controller that measures stay under 5 % of the tensor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(258, 1000), nn.Tanh(), nn.Linear(1000, 3))
    with torch.no_grad():
        model[0].weight.copy_((model[0].weight * 200).round() / 200)  # about 25 values
    model = sharded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rule = ws.Rule(BIG, alpha=0.01, coupling="decoupled", target_distinct=100, tolerance=0.9)
    sharing = ws.WeightSharing(model, optimizer, rule)
    train(model, optimizer, 9)
    tensor, shares = 4 * 258_000, []

    def after():
        shares.append(sharing.report()[BIG]["exchanged"] / tensor)

    train(model, optimizer, 1, after=after)  # the tenth step is the one that measures
    assert sharing.units[0].control.measurements == 1
    assert sharing.report()["total"]["exchanged"] == sharing.report()[BIG]["exchanged"] > 0
    assert shares[0] < 0.05, (shares, sharing.report())
    return sharing.report()[BIG]["distinct"]


def test_bytes_of_a_step_that_measures(two):
    assert all(10 < distinct < 100 for distinct in two.run(on_rank_bytes))


def heal(model, **settings):
    """Ties, some of them zeros and some across tensors; then a few steps with the ties frozen."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.copy_((p * 20).round() / 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 1, seed=3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.copy_((p * 20).round() / 20)
    ws.freeze_clusters(model, optimizer=optimizer, **settings)
    train(model, optimizer, 3, seed=4)
    ws.unfreeze(model)


def on_rank_heal(rank, ranks, per):
    model, single = sharded(model_of()), model_of()
    heal(model, per=per)
    heal(single, per=per)
    assert_same(full(model), full(single))
    both = [w for name, w in full(model).items() if name.endswith("weight")]
    assert len(both[0].unique()) < 10 or per == "row"
    assert (len(torch.cat([w.reshape(-1) for w in both]).unique()) <= 5) == (per == "group")


@pytest.mark.parametrize("per", ["tensor", "row", "group"])
def test_healing_in_shards(two, per):
    two.run(on_rank_heal, per)


def on_rank_ddp_heals(rank, ranks):
    model = nn.parallel.DistributedDataParallel(model_of())
    torch.manual_seed(rank)
    heal(model)
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(ranks)]
        dist.all_gather(copies, p.detach())
        assert all(torch.equal(copy, p) for copy in copies)
    assert len(model.module[0].weight.unique()) < 10


def test_healing_under_ddp(two):
    two.run(on_rank_ddp_heals)


def on_rank_ddp(rank, ranks):
    model = nn.parallel.DistributedDataParallel(model_of())
    optimizer = optimizer_of(model)
    sharing = ws.WeightSharing(model, optimizer, rules("tensor"))
    train(model, optimizer, 4, seed=rank)
    assert sharing.report()[BIG]["distinct"] < 41_280
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(ranks)]
        dist.all_gather(copies, p.detach())
        assert all(torch.equal(copy, p) for copy in copies)


def test_ddp_ranks_stay_bitwise_equal(ranks):
    ranks.run(on_rank_ddp)


def controlled():
    """With a target, so that there is more to save than the number of steps."""
    return [ws.Rule(BIG, alpha=0.5, beta=1e-3, rho=0.5), ws.Rule(SMALL, alpha=0.5, target_distinct=50)]


def on_rank_save(rank, ranks, folder):
    model = sharded(model_of())
    optimizer = optimizer_of(model)
    sharing = ws.WeightSharing(model, optimizer, controlled())
    train(model, optimizer, 12)
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state, "sharing": sharing.state_dict()}
    dcp.save(saved, checkpoint_id=folder)
    kept = full(model)
    train(model, optimizer, 9, seed=2)
    return sent(kept), sent(full(model)), sharing.state_dict()


def on_rank_resume(rank, ranks, folder, kept, wanted, state_after):
    model = sharded(model_of())
    optimizer = optimizer_of(model)
    sharing = ws.WeightSharing(model, optimizer, controlled())
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state, "sharing": sharing.state_dict()}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    sharing.load_state_dict(saved["sharing"])
    assert_same(full(model), {k: torch.from_numpy(w) for k, w in kept.items()})
    assert sharing.units[1].control.measurements == 1
    train(model, optimizer, 9, seed=2)
    assert sharing.steps == state_after["steps"] == 21
    if ranks != 3:  # a third of a sum of three gradients is not always the gradient
        assert_same(full(model), {k: torch.from_numpy(w) for k, w in wanted.items()})
        assert sharing.state_dict() == state_after


def test_checkpoint_resumes_on_another_number_of_ranks(two, ranks, tmp_path):
    kept, wanted, state_after = two.run(on_rank_save, str(tmp_path))[0]
    ranks.run(on_rank_resume, str(tmp_path), kept, wanted, state_after)
