"""However a vector is cut up among ranks, its prox is bitwise that of one process."""

import numpy as np
import pytest
import torch

import weightshare as ws
from certified.zoo import ZOO, draw
from weightshare.distributed import prox_

CUTS = ("even", "uneven", "all on the last", "first is empty")


def cut(w, rank, ranks, how):
    """This rank's piece."""
    n = len(w)
    edges = {
        "even": np.linspace(0, n, ranks + 1),
        "uneven": n * np.linspace(0, 1, ranks + 1) ** 3,
        "all on the last": np.r_[np.zeros(ranks), n],
        "first is empty": np.r_[0, np.linspace(0, n, ranks)] if ranks > 1 else np.array([0, n]),
    }[how].astype(int)
    return w[edges[rank] : edges[rank + 1]].clone(), slice(edges[rank], edges[rank + 1])


def same(got, wanted):
    """Bitwise, so that -0.0 is not 0.0."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[got.element_size()]
    return torch.equal(got.view(kind), wanted.view(kind))


def settings(r):
    """Coefficients in every combination, and one or two threads."""
    return {
        "beta": float(r.choice([0.0, 0.02, 0.3])),
        "rho": float(r.choice([0.0, 0.5, 1.0])),
        "step": float(r.choice([1.0, 0.1])),
        "coupling": str(r.choice(["scaled", "decoupled"])),
    }


def on_rank_compare(rank, ranks, name, dtype, lengths):
    dtype = getattr(torch, dtype)
    routes = set()
    for seed, d in enumerate(lengths):
        r = np.random.default_rng((seed, d))
        w, alpha = draw(name, seed, d)
        full = torch.from_numpy(w).to(dtype)
        full = full[torch.isfinite(full)]
        if dtype == torch.float64 and len(full):
            full = full + full * 1e-9 * torch.from_numpy(r.standard_normal(len(full)))
        options = settings(r)
        if seed % 5 == 4:
            alpha = 0.0
        wanted = ws.prox_(full.clone(), alpha, **options)
        for how in CUTS:
            local, place = cut(full, rank, ranks, how)
            torch.set_num_threads(1 + seed % 2)
            info = prox_(local, alpha, **options)
            torch.set_num_threads(1)
            assert same(local, wanted[place]), (name, d, how, alpha, options, info)
            assert info.weights == len(full)
            routes.add(info.route)
    return routes


@pytest.mark.parametrize("name", ZOO)
def test_float32(ranks, name):
    routes = ranks.run(on_rank_compare, name, "float32", [40_000, 70_001, 33_000, 50, 45_000, 1])
    assert len(set(map(frozenset, routes))) == 1  # all ranks took the same ones


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gaussian", "tight_clusters", "spike_at_zero", "heavy_tail", "denormals"])
def test_other_dtypes(ranks, name, dtype):
    ranks.run(on_rank_compare, name, dtype, [40_000, 9_000, 300, 1, 33_000])


def on_rank_routes(rank, ranks):
    w = torch.randn(60_000, generator=torch.Generator().manual_seed(0))
    found = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for alpha in (0.0, 1e-6, 1.0, 5.0):
            local, _ = cut(w.to(dtype), rank, ranks, "even")
            info = prox_(local, alpha)
            found[str(dtype), alpha] = (info.route, info.unresolved)
    return found


def test_routes(ranks):
    """What the comparisons above have compared."""
    for found in ranks.run(on_rank_routes):
        assert {route for route, _ in found.values()} == {
            "elementwise", "partition", "certified", "gathered", "lut"
        }  # fmt: skip


def on_rank_group(rank, ranks):
    """Several tensors on each rank, of several shapes and strides, one vector together."""
    w = torch.randn(36_000, generator=torch.Generator().manual_seed(3))
    wanted = ws.prox(w, 0.5, 0.01)
    mine, place = cut(w, rank, ranks, "uneven")
    a, b = mine[: len(mine) // 3].clone(), mine[len(mine) // 3 :]
    b = b.clone().reshape(1, -1).t()
    strided = torch.zeros(len(b), 2)[:, :1]
    strided.copy_(b)
    versions = a._version, strided._version
    prox_([a, strided], 0.5, 0.01)
    assert same(torch.cat([a, strided.contiguous().view(-1)]), wanted[place])
    assert (a._version, strided._version) > versions
    single = mine.clone().requires_grad_()
    with torch.no_grad():
        prox_(single, torch.tensor(0.25), beta=torch.tensor(0.005, dtype=torch.float64), step=2.0)
    assert same(single.detach(), wanted[place])


def test_group_of_tensors(ranks):
    ranks.run(on_rank_group)


def on_rank_few(rank, ranks):
    """Fewer weights than ranks, and none at all."""
    for d in (0, 1, 2, 3):
        w = torch.arange(d, dtype=torch.float32)
        local = w[rank : rank + 1].clone() if rank < d and d <= ranks else w[:0].clone()
        if d <= ranks:
            prox_(local, 0.1)
            assert same(local, ws.prox(w, 0.1)[rank : rank + 1][: len(local)])


def test_fewer_weights_than_ranks(ranks):
    ranks.run(on_rank_few)


def tied(d):
    """A layer as it is once training has tied it: twenty values, and noise from one step."""
    g = torch.Generator().manual_seed(7)
    values = torch.randn(20, generator=g)
    return values[torch.randint(20, (d,), generator=g)] + 1e-4 * torch.randn(d, generator=g)


def on_rank_bytes(rank, ranks, dtype, d):
    w = tied(d).to(getattr(torch, dtype))
    local, place = cut(w, rank, ranks, "even")
    info = prox_(local, 0.05, 1e-3)
    assert same(local, ws.prox(w, 0.05, 1e-3)[place])
    return info.bytes_exchanged / w.nbytes, info.unresolved, len(local.unique())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("d", [40_000, 300_000, 4_000_000])
def test_bytes_with_ties(two, dtype, d):
    """Under 5 % of a tensor that is tied, the smallest one that has tables, and well under it for layers."""
    for share, unresolved, distinct in two.run(on_rank_bytes, dtype, d):
        print(f"{share:.2%} exchanged, {unresolved:.2%} unresolved, {distinct} values")
        assert distinct < 100
        assert 0 < share < (0.05 if d < 100_000 else 0.02)
