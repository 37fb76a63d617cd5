"""Figures: drawn from what is stored, to PNG and SVG, the same bytes every time; and they tell the truth."""

import matplotlib as mpl
import numpy as np
import pytest
import torch

import synthetic_runs
from weightshare.experiments import collect, first_layer
from weightshare.experiments.data import load
from weightshare.experiments.figures import filters, ratio, regularization, samples, style, worst_case

mpl.use("Agg")


@pytest.fixture
def records(tmp_path):
    for name, base in (("torus/mlp", 0.8), ("torus/mlp-r", 0.85)):
        for share in (0.2, 0.6, 1.0):
            for seed in (0, 1):
                accuracy = base + 0.1 * share + 0.01 * seed
                synthetic_runs.make(tmp_path, name, seed, accuracy, train_share=share)
    return collect.read([tmp_path])


def test_ratio_shows_means_and_deviations(records):
    axes = ratio.figure(records).axes[0]
    lines = {drawn.get_label(): drawn.lines[0] for drawn in axes.containers}
    assert set(lines) == {"MLP", "MLP + R"}
    assert lines["MLP"].get_xdata() == pytest.approx([20, 60, 100])
    assert lines["MLP"].get_ydata() == pytest.approx([82.5, 86.5, 90.5])
    bars = np.concatenate([path.vertices for c in axes.collections for path in c.get_paths()])
    assert bars[:, 1].min() == pytest.approx(82.5 - 100 * 0.01 / np.sqrt(2))
    assert "2 seeds" in axes.get_title("left")


def test_ratio_has_no_bars_where_there_is_one_seed(records):
    once = [r for r in records if r.config["seed"] == 0 or r.config["train_share"] == 0.6]
    axes = ratio.figure(once).axes[0]
    bars = [path.vertices for c in axes.collections for path in c.get_paths() if len(path.vertices)]
    drawn = np.concatenate(bars)
    assert set(drawn[np.isfinite(drawn[:, 1]), 0]) == {60.0}
    assert "1 to 2 seeds" in axes.get_title("left")


def test_ratio_needs_more_than_one_share(records):
    with pytest.raises(ValueError, match="no runs of torus recipes with several shares"):
        ratio.figure([r for r in records if r.config["train_share"] == 0.6])


def test_regularization_has_its_optimum_where_the_weights_are_equal():
    best = regularization.optimum()
    assert best[0] == pytest.approx(0.5, abs=1e-3)
    assert best[1] == pytest.approx(0.5, abs=1e-3)
    border = torch.tensor([[0.5, 0.0], [0.0, -0.5], [-0.5, -0.5], [0.25, -0.25]], dtype=torch.float64)
    assert torch.allclose(regularization.regularizer(border), torch.ones(4, dtype=torch.float64))


def test_filters_are_as_red_as_they_are_above_their_background():
    image = torch.full((1, 4, 4), 0.3)
    image[0, 1, 2], image[0, 3, 3] = 0.9, -0.3
    shown = filters.picture(image)
    assert shown.shape == (4, 4, 3)
    assert (shown[0, 0] == 1).all()
    assert shown[1, 2, 0] > shown[1, 2, 2] + 0.3
    assert shown[3, 3, 2] > shown[3, 3, 0] + 0.3
    colour = filters.picture(torch.randn(3, 4, 4))
    assert colour.min() >= 0
    assert colour.max() <= 1


def test_groups_are_shown_where_there_are_some_and_missed_where_there_are_none(tmp_path):
    cnn = first_layer.of(synthetic_runs.make(tmp_path, "digits/cnn"))
    mlp = first_layer.of(synthetic_runs.make(tmp_path, "digits/mlp"))
    drawn = filters.translations([cnn, mlp])
    words = [text.get_text() for text in drawn.findobj(mpl.text.Text)]
    assert sum("no two filters are translations" in w for w in words) == 1
    assert any(w.startswith("digits-cnn") and "score 1.00" in w for w in words)


@pytest.mark.parametrize("draw", [filters.translations, filters.sample])
def test_filters_of_several_runs_with_colours_too(tmp_path, draw):
    names = ("digits/cnn", "digits/mlp-r", "cifar10/mlp", "digits/mlp")
    layers = [
        first_layer.of(synthetic_runs.make(tmp_path, name))
        for name in names[: 4 if draw is filters.sample else 2]
    ]
    saved = style.save(draw(layers), tmp_path / "figure", ["png"])
    assert saved[0].read_bytes()[:4] == b"\x89PNG"


def test_samples_show_all_three_variants():
    drawn = samples.figure(load("digits"))
    pictures = [ax.images[0].get_array() for ax in drawn.axes]
    assert len(pictures) == 30
    for column in range(10):  # the same pixels, in other places
        a, b, c = (np.sort(np.asarray(pictures[column + 10 * k]).ravel()) for k in range(3))
        assert np.array_equal(a, b)
        assert np.array_equal(b, c)


def measured():
    points = [
        {"weights": 2**k, "seconds": {"imminent": 1e-6 * 4**k, "search": 1e-4 * k, "auto": 1e-6 * k}}
        for k in range(6, 12)
    ]
    points.append({"weights": 2**16, "seconds": {"search": 2e-3, "auto": 1e-3}})
    return {"points": points, "threads": 2, "circumstances": {"processor": "a processor"}}


def test_worst_case_on_both_scales():
    drawn = worst_case.figure(measured())
    linear, log = drawn.axes
    assert (linear.get_xscale(), linear.get_yscale()) == ("linear", "linear")
    assert (log.get_xscale(), log.get_yscale()) == ("log", "log")
    assert linear.get_xlim()[1] < 2**12  # as far as the slow one goes
    assert len(log.lines[1].get_xdata()) == 7


def test_saved_whole_and_the_same_every_time(tmp_path):
    first = style.save(worst_case.figure(measured()), tmp_path / "new" / "figure")
    assert [path.name for path in first] == ["figure.png", "figure.svg"]
    before = [path.read_bytes() for path in first]
    assert [
        path.read_bytes() for path in style.save(worst_case.figure(measured()), tmp_path / "new" / "figure")
    ] == before
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["figure.png", "figure.svg"]
    with pytest.raises(ValueError, match="'svg'"):
        style.save(regularization.figure(), tmp_path / "figure", ["pdf"])
