"""In place, with hints and with an account: the same results, and nothing harmed."""

import pytest
import torch

import weightshare as ws
from cases import DTYPES


def data(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "imminent"])
def test_in_place_equals_out_of_place(dtype, algorithm):
    for shape, dim in (
        ((300,), None),
        ((20, 30), 0),
        ((20, 30), 1),
        ((4, 5, 6), 1),
        ((0,), None),
        ((), None),
    ):
        w = data(*shape, dtype=dtype)
        expected = ws.prox(w, 0.4, 0.05, 0.5, dim=dim, algorithm=algorithm)
        for view in (w.clone(), w.clone().mT.contiguous().mT if w.ndim > 1 else w.clone()):
            version = view._version
            assert ws.prox_(view, 0.4, 0.05, 0.5, dim=dim, algorithm=algorithm) is view
            assert torch.equal(view, expected)
            assert view.numel() == 0 or view._version > version


def test_a_parameter_is_changed_under_no_grad_only():
    parameter = torch.nn.Parameter(data(50))
    before = parameter.detach().clone()
    with pytest.raises(RuntimeError, match=r"call it under torch.no_grad\(\)"):
        ws.prox_(parameter, 0.1)
    assert torch.equal(parameter, before)
    with torch.no_grad():
        ws.prox_(parameter, 0.1)
    assert torch.equal(parameter, ws.prox(before, 0.1))


def test_autograd_notices_the_change():
    w = data(20).requires_grad_()
    y = (w * w).sum()
    with torch.no_grad():
        ws.prox_(w, 0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("shape", [(40_000,), (3, 7)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bad_weights_leave_everything_as_it_was(shape, dtype):
    for bad in (float("nan"), float("inf"), float("-inf")):
        w = data(*shape, dtype=dtype)
        w[-1] = bad
        before = w.clone()
        for dim in (None, 0):
            with pytest.raises(ValueError, match="w must be finite, got"):
                ws.prox_(w, 0.1, dim=dim)
            assert torch.equal(w.nan_to_num(7.0), before.nan_to_num(7.0))


def test_a_hint_changes_nothing():
    w = data(60_000)
    p, clusters = ws.prox(w.round() + 1e-4 * data(60_000, seed=1), 1e-2, return_clusters=True)
    moved = p + 1e-5 * data(60_000, seed=2)
    expected = ws.prox(moved, 1e-2)
    wrong = (torch.tensor([100.0, -7.0]), torch.tensor([50_000, 3]))
    for hint in (clusters, (clusters.values, clusters.sizes), wrong):
        assert torch.equal(ws.prox(moved, 1e-2, hint=hint), expected)
    for hint in (3, wrong[:1], (wrong[0].to("meta"), wrong[1]), (wrong[0] * 1j, wrong[1])):
        with pytest.raises(TypeError, match="hint must be Clusters or a pair of tensors"):
            ws.prox(moved, 1e-2, hint=hint)
    odd = (torch.tensor([float("nan"), 1.0, 2.0]), torch.tensor([40_000.0, float("inf"), -9.0]))
    assert torch.equal(ws.prox(moved, 1e-2, hint=odd), expected)
    with pytest.raises(ValueError, match="hint must be two vectors of one length"):
        ws.prox(moved, 1e-2, hint=(torch.zeros(2), torch.zeros(3)))


def test_the_account_names_the_route():
    tied = data(200_000).round() + 1e-6 * data(200_000, seed=1)
    p, info = ws.prox(tied, 1e-2, return_info=True)
    assert info.route == "certified"
    assert info.unresolved < 0.1
    assert info.seconds
    q, clusters, info = ws.prox(tied, 1e-2, return_clusters=True, return_info=True)
    assert torch.equal(p, q)
    assert info.clusters == clusters.count
    assert ws.prox(data(200_000), 1e-7, return_info=True)[1].route == "partition"
    assert ws.prox(tied.bfloat16(), 1e-2, return_info=True)[1].route == "lut"
    assert ws.prox(tied[:100], 1e-2, return_info=True)[1].route == "small"
    assert ws.prox(tied[:100], 1e-2, algorithm="search", return_info=True)[1].route == "search"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(40, 30), (3, 20_000)])
def test_rows_with_clusters_are_the_rows_without(dtype, shape):
    w = data(*shape, dtype=dtype)
    w[:, ::3] = w[:, :1]
    for coefficients in ((0.4, 0.05, 0.5), (0.0, 0.3, 0.0), (50.0, 0.0, 1.0)):
        p, clusters = ws.prox(w, *coefficients, dim=1, return_clusters=True)
        assert torch.equal(p, ws.prox(w, *coefficients, dim=1))
        assert torch.equal(p, clusters.expand(clusters.values))
        for r in range(0, shape[0], 7):
            alone, its = ws.prox(w[r], *coefficients, return_clusters=True)
            assert torch.equal(p[r], alone)
            assert torch.equal(clusters.row(r).ids, its.ids)
