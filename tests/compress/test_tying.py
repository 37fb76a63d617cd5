"""ws.tie: optimal clusters, by k-means and by the prox, for tensors, rows, columns, blocks and groups."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import weightshare as ws
from weightshare.metrics import summary


def distinct(weight):
    """How many values there are."""
    return summary(weight.detach()).distinct


def linear(weight):
    """A layer of this weight alone."""
    weight = torch.as_tensor(weight)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def tied(weight, **settings):
    """A copy of the weight, tied."""
    layer = linear(weight)
    ws.tie(layer, **settings)
    return layer.weight.detach()


def least_error(values, k, zeros=False):
    """The least sum of squares of any clustering into k intervals, by trying all of them (exponential)."""
    ordered = sorted(values)
    if zeros:
        k -= 0.0 in ordered
        ordered = [value for value in ordered if value != 0]
        if not k:
            return sum(value**2 for value in ordered)
    best = float("inf")
    for cuts in itertools.combinations(range(1, len(ordered)), min(k, len(ordered)) - 1):
        edges = [0, *cuts, len(ordered)]
        parts = [ordered[a:b] for a, b in itertools.pairwise(edges)]
        best = min(best, sum(sum((v - sum(p) / len(p)) ** 2 for v in p) for p in parts))
    return best if ordered else 0.0


numbers = st.integers(-40, 40).map(lambda n: n / 8)


@settings(max_examples=100)
@given(st.lists(numbers, min_size=1, max_size=11), st.integers(1, 6), st.booleans())
def test_kmeans_against_all_clusterings(values, k, keep_zeros):
    weight = torch.tensor([values], dtype=torch.float64)
    after = tied(weight, distinct=k, keep_zeros=keep_zeros)
    assert distinct(after) <= k
    error = float((after - weight).square().sum())
    if len(set(values)) <= k:
        assert torch.equal(after, weight)
    else:
        assert error == pytest.approx(least_error(values, k, keep_zeros), abs=1e-9)
    if keep_zeros:
        assert torch.equal(after[weight == 0], weight[weight == 0])
    for value in after.unique():  # equal weights stay equal, and every value is the mean of its weights
        if value != 0 or not keep_zeros:
            assert float(weight[after == value].mean()) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [0, 1, 4, 8])
def test_as_many_values_as_bits_tell_apart(bits, dtype):
    weight = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    after = tied(weight, bits=bits)
    assert after.dtype == dtype
    assert 2**bits / 1.2 <= distinct(after) <= 2**bits
    assert torch.equal(tied(weight, distinct=2**bits), after)
    order = weight.flatten().argsort()
    assert (after.flatten()[order].diff() >= 0).all()  # clusters are intervals


@pytest.mark.parametrize("method", ["kmeans", "prox"])
@pytest.mark.parametrize("per", ["tensor", "row", "column", 6])
def test_each_vector_has_values_of_its_own(per, method):
    weight = torch.randn(9, 14, generator=torch.Generator().manual_seed(1))
    after = tied(weight, distinct=3, per=per, method=method)
    vectors = {
        "tensor": [slice(None)],
        "row": list(range(9)),
        "column": [(slice(None), j) for j in range(14)],
        6: [],
    }[per]
    for vector in vectors:
        alone = tied(weight[vector].reshape(1, -1), distinct=3, method=method)
        assert torch.equal(after[vector].reshape(1, -1), alone)
        assert 1 < distinct(alone) <= 3
    if per == 6:
        for before, block in zip(weight.flatten().split(6), after.flatten().split(6)):
            assert torch.equal(block.view(1, -1), tied(before.view(1, -1), distinct=3, method=method))


def test_a_group_is_one_vector():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 9), nn.Linear(9, 7))
    weights = torch.cat([layer.weight.detach().flatten() for layer in model])
    table = ws.tie(model, bits=2, per="group")
    after = torch.cat([layer.weight.detach().flatten() for layer in model])
    assert torch.equal(after.view(1, -1), tied(weights.view(1, -1), bits=2))
    assert [row["tensor"] for row in table] == ["0.weight + 1.weight"]


@pytest.mark.parametrize("rho", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 2, 7, 100])
def test_the_prox_takes_the_least_alpha(k, rho):
    weight = torch.randn(1, 300, generator=torch.Generator().manual_seed(2))
    after = tied(weight, distinct=k, method="prox", rho=rho)
    assert distinct(after) <= k
    scale = 1.0 if rho is None else rho
    assert after.mean() == pytest.approx(float(weight.mean()), abs=1e-5)
    counts = lambda alpha: ws.prox(weight[0], alpha, rho=scale, return_clusters=True)[1].count
    # Some alpha gives this result, and one that is a part in a thousand smaller leaves more clusters.
    low, high = 0.0, float(weight.max() - weight.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if counts(middle) > k else (low, middle)
    assert counts(0.999 * high) > k
    assert distinct(ws.prox(weight[0], 1.001 * high, rho=scale)) <= distinct(after) <= k


def test_what_has_few_values_stays_as_it_is():
    weight = torch.tensor([[0.0, -0.0, 1.5, 1.5, -3.0]])
    for method in ("kmeans", "prox"):
        after = tied(weight, distinct=4, method=method)
        assert torch.equal(after.view(torch.int32), weight.view(torch.int32)), method


def test_only_what_is_selected_and_the_same_objects():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 30))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objects = list(model.parameters())
    table = ws.tie(model, "3.weight", bits=3)
    assert [id(p) for p in model.parameters()] == [id(p) for p in objects]
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == (name != "3.weight")
    row = table["3.weight"]
    after = model[3].weight.detach()
    assert (row["weights"], row["before"], row["distinct"]) == (240, 240, distinct(after))
    change = (after - before["3.weight"]).norm() / before["3.weight"].norm()
    assert row["error"] == pytest.approx(float(change), rel=1e-4)
    ws.tie(model, bits=1)
    assert distinct(model[0].weight) == distinct(model[3].weight) == 2
    assert distinct(model[3].bias) > 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give bits or distinct, one of them"),
        ({"bits": 2, "distinct": 4}, "give bits or distinct, one of them"),
        ({"bits": 17}, "bits must be at most 16, got 17"),
        ({"bits": -1}, "bits must be"),
        ({"distinct": 0}, "distinct must be"),
        ({"bits": 2, "method": "median"}, "method 'median'"),
        ({"bits": 2, "method": "prox", "keep_zeros": True}, 'keep_zeros=True is for method="kmeans"'),
        ({"bits": 2, "rho": 0.5}, 'rho is for method="prox"'),
        ({"bits": 2, "method": "prox", "rho": 1.5}, r"rho must be in \[0, 1\]"),
        ({"bits": 2, "per": "filter"}, "per"),
        ({"bits": 2, "select": "nothing"}, "nothing"),
    ],
)
def test_wrong_settings_change_nothing(settings, message):
    layer = nn.Linear(20, 30)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=message):
        ws.tie(layer, **settings)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("method", ["kmeans", "prox"])
def test_healing_wins_back_what_tying_costs(method, tmp_path):
    """Tie, train the values on with the ties frozen, save: fewer errors, the same ties, a small file."""
    torch.manual_seed(0)
    x = torch.randn(500, 16)
    y = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))(x).detach()
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))

    def train(steps):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        return float(nn.functional.mse_loss(model(x), y).detach())

    trained = train(200)
    ws.tie(model, distinct=4, method=method)
    pattern = [layer.weight.detach().unique(return_inverse=True)[1] for layer in (model[0], model[2])]
    cost = train(0)
    ws.freeze_clusters(model)
    healed = train(100)
    ws.unfreeze(model)
    assert trained < cost
    assert healed < 0.8 * cost
    for layer, before in zip((model[0], model[2]), pattern):
        values, now = layer.weight.detach().unique(return_inverse=True)
        assert len(values) <= 4
        assert len({(int(a), int(b)) for a, b in zip(before.flatten(), now.flatten())}) == len(values)
    done = ws.save(model, tmp_path / "file")
    assert done["0.weight"]["after"] <= 16 * 24 / 4 + 4 * 4
