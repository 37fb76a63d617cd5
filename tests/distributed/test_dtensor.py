"""DTensors: every placement gives what one process has, or says why not."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import weightshare as ws
from weightshare.distributed import dtensor_prox_, metered


def make(shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def on_rank_placements(rank, ranks, shape):
    mesh = init_device_mesh("cpu", (ranks,))
    full = make(shape)
    for placement in (Shard(0), Shard(1), Replicate()):
        for dim in (None, 0, 1, -1):
            w = distribute_tensor(full.clone(), mesh, [placement])
            local = w.to_local()
            with metered() as meter:
                info = dtensor_prox_(w, 0.3, 0.01, 0.5, dim=dim)
            assert info.bytes_exchanged == meter.bytes or dim is not None
            assert torch.equal(w.full_tensor(), ws.prox(full, 0.3, 0.01, 0.5, dim=dim)), (placement, dim)
            assert w.to_local().data_ptr() == local.data_ptr()
            assert w.placements == (placement,)
            if dim is not None:
                crosses = placement.is_shard() and placement.dim % w.ndim == dim % w.ndim
                assert info.route == ("gathered" if crosses else "local")
                assert crosses or meter.bytes <= 56 * ranks


@pytest.mark.parametrize("shape", [(7, 5), (2, 300), (300, 150), (5, 4, 3, 3)])
def test_placements(ranks, shape):
    """Uneven shards, and with 2 rows on 3 ranks an empty one."""
    ranks.run(on_rank_placements, shape)


def on_rank_group(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    fulls = [make((200, 100)), make((3, 7), 1), make((150, 120), 2)]
    wanted = ws.prox(torch.cat([f.reshape(-1) for f in fulls]), 0.5, 0.01)
    for placement in (Shard(0), Replicate()):
        parts = [distribute_tensor(f.clone(), mesh, [placement]) for f in fulls]
        dtensor_prox_(parts, 0.5, 0.01)
        assert torch.equal(torch.cat([p.full_tensor().reshape(-1) for p in parts]), wanted)
    mixed = [
        distribute_tensor(fulls[0], mesh, [Shard(0)]), distribute_tensor(fulls[1], mesh, [Replicate()])
    ]  # fmt: skip
    with pytest.raises(ValueError, match="all sharded on one of its dimensions or all replicated"):
        dtensor_prox_(mixed, 0.5)


def test_group(ranks):
    ranks.run(on_rank_group)


def on_rank_not_finite(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    full = make((8, 6))
    full[7, 2] = float("nan")
    told = []
    for dim in (None, 0, 1):
        w = distribute_tensor(full.clone(), mesh, [Shard(0)])
        try:
            dtensor_prox_(w, 0.1, dim=dim)
        except ValueError as error:
            told.append(str(error))
        assert torch.equal(w.full_tensor().nan_to_num(), full.nan_to_num())  # no rank has written
    return told


def test_not_finite_on_one_rank(ranks):
    told = ranks.run(on_rank_not_finite)
    assert all(t == told[0] and len(t) == 3 for t in told)


def on_rank_hybrid(rank, ranks):
    """Replicas of shards (HSDP); and two dimensions sharded, which is refused."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    full = make((301, 150))
    for placements in ([Replicate(), Shard(0)], [Shard(1), Replicate()], [Replicate(), Replicate()]):
        w = distribute_tensor(full.clone(), mesh, placements)
        dtensor_prox_(w, 0.3)
        assert torch.equal(w.full_tensor(), ws.prox(full, 0.3))
        dtensor_prox_(w, 0.3, dim=1)
        assert torch.equal(w.full_tensor(), ws.prox(ws.prox(full, 0.3), 0.3, dim=1))
    w = distribute_tensor(full.clone(), mesh, [Shard(0), Shard(1)])
    with pytest.raises(ValueError, match="at most one dimension of its mesh"):
        dtensor_prox_(w, 0.3)
    sub = DTensor.from_local(torch.ones(2), mesh["shard"], [Shard(0)])
    dtensor_prox_(sub, 0.3)


def test_meshes_of_two_dimensions(ranks):
    if ranks.count == 4:
        ranks.run(on_rank_hybrid)


def on_rank_refused(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    pending = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
    with pytest.raises(ValueError, match="pending sum"):
        dtensor_prox_(pending, 0.1)
    with pytest.raises(TypeError, match="must be a DTensor, got Tensor"):
        dtensor_prox_(torch.ones(2), 0.1)
    w = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(ValueError, match="dim is out of range"):
        dtensor_prox_(w, 0.1, dim=3)
    with pytest.raises(TypeError, match="use dtensor_prox_"):
        ws.distributed.prox_(w, 0.1)
    with pytest.raises(ValueError, match="several with dim=None"):
        dtensor_prox_([w, w], 0.1, dim=0)


def test_refused(two):
    two.run(on_rank_refused)
