"""Clusters are a partition that can be looked at, averaged over and expanded, alone or in batches."""

import copy
import pickle

import pytest
import torch
from hypothesis import given

import weightshare as ws
from cases import alphas, weights


@given(weights, alphas)
def test_partition(values, alpha):
    w = torch.tensor(values, dtype=torch.float64)
    p, clusters = ws.prox(w, alpha, return_clusters=True)
    assert clusters.count == len(clusters) == clusters.starts.numel()
    assert clusters.starts.dtype == clusters.ids.dtype == torch.int64
    assert int(clusters.sizes.sum()) == w.numel()
    assert bool((clusters.sizes > 0).all())
    assert torch.equal(torch.bincount(clusters.ids.reshape(-1), minlength=len(clusters)), clusters.sizes)
    order = w.argsort(stable=True)
    assert torch.equal(clusters.ids[order], clusters.ids[order].sort().values)
    assert torch.equal(clusters.expand(clusters.means(p)), p)


def test_batched():
    w = torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(0))
    p, clusters = ws.prox(w, 0.4, dim=1, return_clusters=True)
    assert clusters.count.shape == (3, 2)
    assert int(clusters.count.sum()) == len(clusters)
    assert clusters.ids.shape == w.shape
    assert torch.equal(clusters.expand(clusters.means(p)), p)
    assert torch.equal(clusters.rows.bincount().reshape(3, 2), clusters.count)
    last = clusters.row(-1)
    _, alone = ws.prox(w[2, :, 1], 0.4, return_clusters=True)
    assert torch.equal(last.starts, alone.starts)
    assert torch.equal(last.ids, alone.ids)
    assert torch.equal(last.sizes, alone.sizes)
    with pytest.raises(IndexError, match="row 6 is out of range for clusters of 6 rows"):
        clusters.row(6)


def test_equal_values_have_exactly_themselves_as_mean():
    w = torch.full((1000,), 0.1, dtype=torch.float64)
    _, clusters = ws.prox(w, 1.0, return_clusters=True)
    assert clusters.means(w).tolist() == [0.1]


def test_repr_tells_the_story():
    _, clusters = ws.prox(torch.tensor([0.0, 0.1, 5.0, 9.0]), 0.3, return_clusters=True)
    assert repr(clusters) == "Clusters(4 weights in 3 clusters, sizes 1 to 2, 2 of a single weight)"
    _, clusters = ws.prox(torch.zeros(2000), 0.3, return_clusters=True)
    assert repr(clusters) == "Clusters(2,000 weights in 1 cluster, each of size 2,000)"
    _, clusters = ws.prox(torch.tensor([[0.0, 0.1, 1.0], [0.0, 3.0, 6.0]]), 0.2, dim=1, return_clusters=True)
    assert repr(clusters) == (
        "Clusters(2 rows of 3 weights in 5 clusters, 2 to 3 a row, sizes 1 to 2, 4 of a single weight)"
    )
    _, clusters = ws.prox(torch.tensor([[0.0, 9.0], [0.0, 5.0]]), 0.2, dim=1, return_clusters=True)
    assert repr(clusters) == "Clusters(2 rows of 2 weights in 4 clusters, 2 a row, each of size 1)"
    for shape, dim, text in (
        ((1, 1), 1, "1 row of 1 weight in 1 cluster, each of size 1"),
        ((), None, "1 weight in 1 cluster, each of size 1"),
        ((0,), None, "0 weights in 0 clusters"),
    ):
        assert repr(ws.prox(torch.zeros(shape), 0.1, dim=dim, return_clusters=True)[1]) == f"Clusters({text})"


def test_wrong_shapes_are_named():
    _, clusters = ws.prox(torch.tensor([0.0, 0.1, 5.0]), 0.3, return_clusters=True)
    with pytest.raises(ValueError, match=r"values must have shape \(3,\), got \(4,\)"):
        clusters.means(torch.zeros(4))
    with pytest.raises(ValueError, match=r"per_cluster must have shape \(2,\)"):
        clusters.expand(torch.zeros(3))


def test_copies_and_pickles():
    _, clusters = ws.prox(torch.randn(3, 5), 0.3, dim=1, return_clusters=True)
    for other in (copy.deepcopy(clusters), pickle.loads(pickle.dumps(clusters))):
        assert torch.equal(other.ids, clusters.ids)
        assert torch.equal(other.starts, clusters.starts)
