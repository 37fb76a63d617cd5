"""Configs: what comes in is checked by name, and comes back from TOML and JSON as it was."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightshare.experiments.config import KEYS, Config
from weightshare.experiments.recipes import RECIPES, presets, recipe

ALL = [(name, preset) for name in RECIPES for preset in presets(name)]

configs = st.builds(
    lambda at, seed, alpha, beta, layers, augment: recipe(*at).with_settings(
        {"seed": seed, "alpha": alpha, "beta": beta, "layers": layers, "augment": augment}
    ),
    st.sampled_from(ALL),
    st.integers(0, 10**9),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
    st.permutations([1, 2, 3]).map(lambda order: order[:2]),
    st.booleans(),
)


@settings(max_examples=50)
@given(config=configs)
def test_a_config_comes_back_from_toml_json_and_its_own_text(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    (folder / "a.toml").write_text(config.to_toml())
    (folder / "a.json").write_text(json.dumps(config.to_dict()))
    (folder / "summary.json").write_text(json.dumps({"config": config.to_dict(), "metrics": {}}))
    for name in ("a.toml", "a.json", "summary.json"):
        assert Config.from_file(folder / name) == [config]
    words = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in config.to_dict().items()}
    lines = [f"{key}={value}" for key, value in words.items()]
    assert recipe("torus/mlp").with_settings(lines) == config


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("alhpa=1", "unknown setting 'alhpa'.*did you mean 'alpha'"),
        ("alpha", "--set needs key=value, got 'alpha'"),
        ("alpha=", "alpha must be a number, got ''"),
        ("lr=fast", "lr must be a number, got 'fast'"),
        ("epochs=1.5", "epochs must be a whole number, got 1.5"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("batch=1", "batch must be at least 2, got 1"),
        ("lr=-1", "lr must be at least 0, got -1"),
        ("lr=nan", "lr must be at least 0, got nan"),
        ("alpha=inf", "alpha must be at least 0, got inf"),
        ("rho=1.5", r"rho must be in \[0, 1\], got 1.5"),
        ("momentum=1", "momentum must be in"),
        ("train_share=0", "train_share must be above 0"),
        ("holdout=0.95", "holdout must be in"),
        ("layers=1,1", "layers must be some of 1, 2 and 3, each once"),
        ("layers=4", "layers must be some of"),
        ("layers=one", "layers must be whole numbers"),
        ("augment=maybe", "augment must be true or false"),
        ("method=proxy", "unknown method 'proxy'.*did you mean 'prox'"),
        ("variant=no-symetry", "did you mean 'no-symmetry'"),
        ("dataset=cifar10", "torus is not run on dataset 'cifar10'"),
        ("recipe=tours/mlp", "unknown experiment 'tours'.*did you mean 'torus'"),
    ],
)
def test_bad_settings_are_named_with_the_remedy(setting, said):
    with pytest.raises((ValueError, TypeError), match=said):
        recipe("torus/mlp").with_settings([setting])


def test_combinations_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="variant='no-symmetry' is for the torus"):
        recipe("cifar10/mlp", variant="no-symmetry")
    with pytest.raises(ValueError, match="rho must be below 1"):
        recipe("cifar10/beta-lasso", rho=1.0)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe("torus/mlp").lr = 1.0
    assert tuple(recipe("torus/mlp").to_dict()) == KEYS


def test_types_are_kept_where_nothing_is_lost():
    config = recipe("torus/mlp", epochs=3.0, lr=1)
    assert type(config.epochs) is int
    assert type(config.lr) is float
    with pytest.raises(TypeError, match="augment must be true or false, got 1"):
        recipe("torus/mlp", augment=1)
    with pytest.raises(TypeError, match="epochs must be a whole number, got True"):
        recipe("torus/mlp", epochs=True)
    assert not math.isnan(config.lr)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "recipe = ", "a.toml is not TOML"),
        ("a.json", "{", "a.json is not JSON"),
        ("a.json", "[1]", "a.json: settings by their keys are needed, got list"),
        ("a.toml", 'recipe = "torus/mlp"\nalhpa = 1', "a.toml: unknown setting 'alhpa'"),
        ("a.json", '{"runs": [3]}', "a.json: settings by their keys are needed, got int"),
        ("a.toml", "lr = 0.1", "a config needs its recipe"),
        ("a.toml", 'recipe = "torus/mlp"\nlr = "x"', "a.toml: lr must be a number, got 'x'"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        Config.from_file(tmp_path / name)


def test_a_file_of_results_has_the_configs_of_all_its_runs():
    """Those of the repository, too: what is published can be made again."""
    files = [
        f for f in (Path(__file__).parents[2] / "results").glob("*.json") if '"runs": [' in f.read_text()
    ]
    assert "torus-cpu.json" in {file.name for file in files}
    for file in files:
        configs = Config.from_file(file)
        assert len(set(configs)) == len(json.loads(file.read_text())["runs"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no file .*none.toml"):
        Config.from_file(tmp_path / "none.toml")
