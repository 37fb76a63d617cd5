"""A tiny regression problem, and models for it that start from the same weights every time."""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _small_networks(one_thread):
    """One thread for all of them."""


def _mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


@pytest.fixture
def mlp():
    return _mlp


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 8, 12, generator=generator)
    return [(a, torch.stack([a.sum(1), a[:, 0], -a[:, :5].sum(1)], 1)) for a in x]


@pytest.fixture
def train(batches):
    """Run an ordinary loop; ``during(i)`` is called after each step."""

    def run(model, optimizer, steps=10, during=None):
        dtype = next(model.parameters()).dtype
        for i in range(steps):
            x, y = batches[i % len(batches)]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.to(dtype)), y.to(dtype)).backward()
            optimizer.step()
            if during is not None:
                during(i)
        return model

    return run
