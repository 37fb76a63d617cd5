"""The filter score: its two ends, what it does not fall for, and what it must not depend on."""

import pytest
import torch
from torch import nn

from weightshare.experiments import filters

TORUS = (1, 10, 10)
PADDED = (3, 12, 12)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def circular():
    return filters.as_dense(nn.Conv2d(1, 6, 3, padding=1, padding_mode="circular"), TORUS)


def padded():
    return filters.as_dense(nn.Conv2d(3, 6, 5, stride=2, padding=2), PADDED)


def score(w, shape=TORUS, **options):
    return filters.score(w, shape, wrap=shape is TORUS, rows=100, **options)


@pytest.mark.parametrize(("make", "shape"), [(circular, TORUS), (padded, PADDED)])
def test_a_convolution_is_at_one_end(make, shape):
    found = filters.likeness(make(), shape, wrap=shape is TORUS, rows=100)
    assert found.score > 0.98
    assert found.locality > 0.8
    assert found.alive == len(make())


@pytest.mark.parametrize("shape", [TORUS, PADDED])
@pytest.mark.parametrize("kind", ["normal", "linear", "sparse", "tied"])
def test_random_weights_are_at_the_other_end(shape, kind):
    pixels = shape[0] * shape[1] * shape[2]
    w = torch.randn(300, pixels)
    if kind == "linear":
        w = nn.Linear(pixels, 300).weight
    if kind == "sparse":
        w = w * (torch.rand_like(w) < 0.05)
    if kind == "tied":
        w = (2 * w).round().clamp(-1, 1)
    assert score(w, shape) < 0.1


@pytest.mark.parametrize(("make", "shape"), [(circular, TORUS), (padded, PADDED)])
def test_permuted_pixels_count_once_the_permutation_is_known(make, shape):
    w, pixels = make(), shape[1] * shape[2]
    order = torch.randperm(pixels)
    seen = w.view(-1, shape[0], pixels)[:, :, order].flatten(1)
    assert score(seen, shape) < 0.1
    assert score(seen, shape, order=order) == score(w, shape)


def test_a_convolution_on_permuted_pixels_is_one_without_locality():
    far = nn.Conv2d(1, 6, 3, padding=3, padding_mode="circular", dilation=3)
    near, spread = (
        filters.likeness(filters.as_dense(c, TORUS), TORUS, wrap=True, rows=100)
        for c in (nn.Conv2d(1, 6, 3, padding=1, padding_mode="circular"), far)
    )
    assert near.score == spread.score == 1.0
    assert spread.locality < 0.6 < near.locality


@pytest.mark.parametrize(("make", "shape"), [(circular, TORUS), (padded, PADDED)])
def test_falls_as_noise_grows(make, shape):
    w = make()
    noise = torch.randn_like(w) * w.std()
    found = [score(w + level * noise, shape) for level in (0.0, 0.05, 0.1, 0.2, 0.4, 1.0, 3.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.98
    assert found[-1] < 0.15


def test_copies_at_one_place_are_no_convolution():
    row = torch.zeros(1, 100)
    row[0, torch.randperm(100)[:12]] = torch.randn(12)
    assert score(row.expand(50, -1).contiguous()) < 0.5


def test_filters_of_one_pixel_and_constant_rows_prove_nothing():
    assert score(torch.eye(100)) == 0.0
    constant = filters.likeness(torch.full((20, 100), 0.3), TORUS, wrap=True)
    assert (constant.score, constant.alive, constant.rows) == (0.0, 0, 0)
    assert filters.groups(torch.full((20, 100), 0.3), TORUS, wrap=True) == []


def test_scale_and_offset_of_each_row_do_not_matter():
    w = circular()
    changed = w * torch.rand(len(w), 1).add(0.5) + torch.randn(len(w), 1)
    assert score(changed) == pytest.approx(score(w), abs=1e-3)


def test_rows_in_another_order_are_as_much_of_a_convolution():
    w = circular() + 0.02 * torch.randn(600, 100)
    assert score(w[torch.randperm(600)]) == pytest.approx(score(w), abs=0.05)


def test_groups_are_the_channels_of_a_convolution_and_their_shifts_the_positions():
    conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular", bias=False)
    with torch.no_grad():  # filters that no translation makes alike
        conv.weight.copy_(torch.linalg.qr(torch.randn(9, 4)).Q.T.reshape(4, 1, 3, 3))
    w = filters.as_dense(conv, TORUS)
    found = filters.groups(w, TORUS, wrap=True, threshold=0.95, rows=400)
    assert [len(group.rows) for group in found] == [100] * 4
    pictures = filters.images(w, TORUS)
    for group in found:
        assert len({row // 100 for row in group.rows}) == 1
        assert len(set(group.shifts)) == 100
        assert group.correlation == pytest.approx(1.0, abs=1e-4)
        for row, shift in zip(group.rows[:20], group.shifts):
            moved = pictures[group.rows[0]].roll(shift, dims=(1, 2))
            assert torch.allclose(moved, pictures[row])


def test_groups_with_padding_reach_over_the_border():
    w = torch.zeros(2, 144)
    w[0].view(12, 12)[1:4, 4:7] = torch.arange(9.0).view(3, 3) + 1
    w[1].view(12, 12)[0:2, 6:9] = w[0].view(12, 12)[2:4, 4:7]  # two up, two right: the first line is lost
    (group,) = filters.groups(w, (1, 12, 12), wrap=False)
    assert group.rows == [0, 1]
    assert group.shifts == [(0, 0), (-2, 2)]
    assert group.correlation == pytest.approx(1.0, abs=1e-4)


def test_shape_and_order_are_checked():
    with pytest.raises(ValueError, match=r"weight must have shape \(rows, 100\).*got \(5, 99\)"):
        filters.likeness(torch.randn(5, 99), TORUS, wrap=True)
    with pytest.raises(ValueError, match="order must be a permutation of the 100 pixels"):
        filters.likeness(torch.randn(5, 100), TORUS, wrap=True, order=torch.zeros(100, dtype=torch.int64))
    with pytest.raises(ValueError, match="threshold must be in"):
        filters.groups(torch.randn(5, 100), TORUS, wrap=True, threshold=1.5)


def test_as_dense_is_the_map():
    conv = nn.Conv2d(3, 4, 5, stride=2, padding=2)
    x = torch.randn(7, *PADDED)
    with torch.no_grad():
        bias = conv(torch.zeros(1, *PADDED)).flatten(1)
        assert torch.allclose(
            x.flatten(1) @ filters.as_dense(conv, PADDED).T + bias, conv(x).flatten(1), atol=1e-5
        )


def test_the_first_layer_of_a_run_undoes_its_permutation(tmp_path):
    import synthetic_runs
    from weightshare.experiments import first_layer, torus
    from weightshare.experiments.data import load

    run = synthetic_runs.make(tmp_path, "torus/cnn", seed=3, variant="no-symmetry")
    layer = first_layer.of(run)
    made = torus.make(load("digits"), "no-symmetry", 3, torch.tensor([0]))
    assert torch.equal(layer.order, made.permutation)
    assert layer.wrap
    assert layer.shape == (1, 8, 8)
    plain = first_layer.of(synthetic_runs.make(tmp_path, "torus/cnn", seed=3))
    assert plain.order is None
    assert plain.weight.shape == (2 * 64, 64)
    assert plain.likeness().score > 0.9
