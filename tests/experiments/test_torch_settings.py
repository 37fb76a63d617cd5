"""A run has PyTorch's settings as its config says, and gives them back, whatever happens."""

from __future__ import annotations

import json

import pytest
import torch

from weightshare.experiments import recipes, train
from weightshare.experiments.torch_settings import as_configured


def settings() -> tuple[int, str]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


@pytest.mark.parametrize("matmul", ["highest", "high", "medium"])
def test_they_hold_inside_and_come_back(matmul):
    before = settings()
    config = recipes.recipe("torus/mlp", "smoke", threads=1, matmul=matmul)

    def fail() -> None:
        assert settings() == (1, matmul)
        raise KeyError

    with pytest.raises(KeyError), as_configured(config):
        fail()
    assert settings() == before


def test_no_number_of_threads_leaves_it():
    before = torch.get_num_threads()
    with as_configured(recipes.recipe("torus/mlp", "smoke", threads=0)):
        assert torch.get_num_threads() == before


def test_products_of_float32_stay_near_float64_at_any_setting():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 300, generator=generator), torch.randn(300, 80, generator=generator)
    exact = a.double() @ b.double()
    for matmul in ("highest", "high", "medium"):
        with as_configured(recipes.recipe("torus/mlp", "smoke", matmul=matmul)):
            # bfloat16 has 8 bits: that is the worst that a processor may do here.
            assert (a @ b - exact).abs().max() < 2**-6 * 300**0.5


def test_runs_from_before_there_was_the_setting_are_known_again(tmp_path):
    config = recipes.recipe("digits/mlp", "smoke", epochs=1)
    done = train.run(config, tmp_path, tensorboard=False)
    file = done.path / "config.json"
    old = json.loads(file.read_text())
    assert old["config"].pop("matmul") == "highest"
    file.write_text(json.dumps(old))
    assert train.run(config, tmp_path, tensorboard=False).path == done.path
