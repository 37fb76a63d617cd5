"""Recipes: at preset paper they are the paper's, and each config has a folder of its own."""

import itertools

import pytest
import torch

from weightshare.experiments import models, published, recipes
from weightshare.experiments.recipes import recipe

TORUS = {
    "dataset": "mnist", "train_share": 0.6, "width": 32, "epochs": 200, "batch": 512, "lr": 0.1,
    "momentum": 0.9, "schedule": "cosine", "coupling": "decoupled", "layers": (1, 2), "rho": 0.0,
    "augment": False, "holdout": 0.0, "heal_epochs": 0,
}  # fmt: skip
CIFAR10 = {
    "dataset": "cifar10", "train_share": 1.0, "width": 64, "epochs": 400, "batch": 512, "lr": 0.1,
    "momentum": 0.0, "schedule": "cosine", "coupling": "scaled", "layers": (1,), "dropout": 0.0,
    "augment": True, "holdout": 0.0, "heal_epochs": 0,
}  # fmt: skip
OWN = {
    "torus/cnn": {"model": "cnn", "method": "none", "dropout": 0.0},
    "torus/mlp": {"model": "mlp", "method": "none", "dropout": 0.4},
    "torus/mlp-l1": {"method": "l1", "beta": 1e-4, "alpha": 0.0, "dropout": 0.4},
    "torus/mlp-r": {"method": "prox", "alpha": 1e-3, "alpha_ratio": 0.1, "beta": 0.0},
    "torus/mlp-r-l1": {"method": "prox", "alpha": 1e-3, "alpha_ratio": 0.1, "beta": 1e-4},
    "cifar10/cnn": {"model": "cnn", "method": "none"},
    "cifar10/mlp": {"model": "mlp", "method": "none"},
    "cifar10/beta-lasso": {"method": "beta-lasso", "beta": 1e-5, "rho": 0.98},
    "cifar10/l1": {"method": "l1", "beta": 1e-3, "rho": 0.98},
    "cifar10/r-subgradient": {"method": "subgradient", "alpha": 1e-3},
    "cifar10/r": {"method": "prox", "alpha": 1e-3, "beta": 0.0, "rho": 0.98},
    "cifar10/r-l1": {"method": "prox", "alpha": 2e-4, "beta": 1e-3, "rho": 0.98},
}


@pytest.mark.parametrize("name", OWN)
def test_preset_paper_has_the_papers_numbers(name):
    config = recipe(name, "paper")
    common = TORUS if name.startswith("torus") else CIFAR10
    for key, value in {**common, **OWN[name]}.items():
        assert getattr(config, key) == value, key


def test_alpha_of_the_torus_layers_and_the_threshold_of_beta_lasso():
    from weightshare.experiments.rules import method

    config = recipe("torus/mlp-r", "paper")
    assert config.strength(1) == 1e-3
    assert config.strength(2) == pytest.approx(1e-4)
    found = method(recipe("cifar10/beta-lasso", "paper"), 1)
    assert found.threshold == 50.0


def test_every_row_of_the_papers_tables_has_a_recipe():
    rows = {row.recipe for row in published.TORUS + published.CIFAR10}
    assert rows == set(OWN)
    assert set(OWN) | {f"digits/{n}" for n in ("cnn", "mlp", "mlp-l1", "mlp-r")} == set(recipes.RECIPES)


@pytest.mark.parametrize(
    ("name", "side", "weights"),
    [
        # The sizes of the linear layers, without biases and batch norm.
        ("torus/mlp", 14, [196 * 6272, 6272 * 12544, 64 * 10]),
        ("torus/cnn", 14, [9 * 32, 9 * 32 * 64, 64 * 10]),
        ("cifar10/mlp", 32, [3072 * 16384, 16384 * 1536, 1536 * 10]),
        ("cifar10/cnn", 32, [3 * 81 * 64, 16384 * 1536, 1536 * 10]),
    ],
)
def test_preset_paper_has_the_papers_networks(name, side, weights):
    with torch.device("meta"):
        model = models.build(recipe(name, "paper"), side)
    layers = (model.layer1, model.layer2, model.output)
    assert [layer.weight.numel() for layer in layers] == weights
    if name == "cifar10/mlp":
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 75.6


def test_folders_differ_where_configs_do_and_only_there():
    configs = [
        recipe(name, preset, seed=seed, **more)
        for name in recipes.RECIPES
        for preset in recipes.presets(name)
        for seed in (0, 1)
        for more in ({}, {"lr": 0.05}, {"lr": 0.06}, {"train_share": 0.2})
    ]
    folders = {recipes.folder(config) for config in configs}
    assert len(folders) == len(configs)
    for one in configs[:8]:
        assert recipes.folder(recipe(one.recipe, one.preset).with_settings(one.to_dict())) == recipes.folder(
            one
        )


def test_settings_that_are_the_recipes_own_are_no_change():
    config = recipe("torus/mlp", "cpu", lr=0.1)
    assert recipes.changes(config) == {}
    assert recipes.folder(config).name == "seed0"


def test_names_and_globs():
    assert recipes.expand(["torus/*"]) == [name for name in recipes.RECIPES if name.startswith("torus/")]
    assert recipes.expand(["cifar10/r", "torus/mlp", "torus/m*"])[0] == "torus/mlp"
    for first, second in itertools.permutations(["torus/mlp", "torus/cnn"]):
        assert recipes.expand([first, second, first]) == ["torus/cnn", "torus/mlp"]
    with pytest.raises(ValueError, match="unknown recipe 'torus/mlp-rr'.*did you mean 'torus/mlp-r'"):
        recipes.expand(["torus/mlp-rr"])
    with pytest.raises(ValueError, match="unknown recipe 'tours/"):
        recipes.expand(["tours/*"])
    with pytest.raises(ValueError, match="unknown preset 'cup'.*did you mean 'cpu'"):
        recipe("torus/mlp", "cup")
