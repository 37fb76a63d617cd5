"""What is told of a tensor in shards is what is told of the whole."""

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from weightshare import metrics
from weightshare.distributed import metered, of_each, value_counts


def tied(shape, dtype, values=20):
    g = torch.Generator().manual_seed(0)
    table = torch.randn(values, generator=g)
    table[:2] = torch.tensor([0.0, -0.0])
    return table[torch.randint(values, shape, generator=g)].to(dtype)


def on_rank_counts(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensors = [tied((301, 40), dtype), tied((2, 7), dtype), torch.randn(50, 3).to(dtype) * (rank + 1)]
        torch.distributed.broadcast(tensors[2], 0)
        for placement in (Shard(0), Shard(1), Replicate()):
            parts = [distribute_tensor(t, mesh, [placement]) for t in tensors]
            for some, mine in ((tensors[:1], parts[:1]), (tensors, [*parts[:2], tensors[2]])):
                wanted, got = metrics.value_counts(some), value_counts(mine)
                assert all(np.array_equal(a, b) for a, b in zip(got, wanted))
            gathered = value_counts(parts[2])  # nothing is tied: the weights are fewer bytes than a table
            assert np.array_equal(gathered[1], metrics.value_counts(tensors[2])[1])
            with metered() as meter:
                value_counts(parts[0])
            sharded = ranks > 1 and not placement.is_replicate()
            assert (meter.bytes > 0) == sharded
            assert meter.bytes < 0.15 * tensors[0].nbytes
            sums = of_each(parts[0], lambda shard: float(shard.double().sum()))
            assert len(sums) == (ranks if sharded else 1)
            assert sum(sums) == pytest.approx(float(tensors[0].double().sum()))


def test_counts(ranks):
    ranks.run(on_rank_counts)


def on_rank_not_finite(rank, ranks):
    w = tied((40, 5), torch.float32)
    w[39, 2] = float("inf")
    part = distribute_tensor(w, init_device_mesh("cpu", (ranks,)), [Shard(0)])
    with pytest.raises(ValueError, match="w must be finite, got inf"):
        value_counts(part)


def test_not_finite_on_one_rank(two):
    two.run(on_rank_not_finite)
