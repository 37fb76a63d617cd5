"""The first layer of a stored run as a matrix over the pixels of its images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from weightshare.experiments import filters, models, torus
from weightshare.experiments.config import Config
from weightshare.experiments.folder import Run

WEIGHT = "layer1.weight"

_CIFAR_SIDE = 32


@dataclass(frozen=True)
class Layer:
    """A first layer as a matrix, and what its rows look like; :func:`filters.images` explains ``order``."""

    title: str
    weight: Tensor
    shape: filters.Shape
    wrap: bool
    order: Tensor | None = None

    def pictures(self) -> Tensor:
        """The rows as images."""
        return filters.images(self.weight, self.shape, self.order)

    def likeness(self) -> filters.Likeness:
        """How much like a convolution it is."""
        return filters.likeness(self.weight, self.shape, wrap=self.wrap, order=self.order)

    def groups(self) -> list[filters.Group]:
        """Rows that are translations of one another."""
        return filters.groups(self.weight, self.shape, wrap=self.wrap, order=self.order)


def load(file: Path) -> dict[str, Tensor]:
    """A stored state_dict, on the CPU."""
    found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return found


def of(run: Run, title: str | None = None) -> Layer:
    """The first layer of a finished run; a convolution as the matrix that it is."""
    if not run.weights.is_file():
        raise ValueError(f"there are no weights in {run.path}: is the run finished, and its folder whole?")
    config = Config.from_dict(run.config)
    return of_weights(load(run.weights)[WEIGHT], config, title or run.name)


def of_weights(weight: Tensor, config: Config, title: str = "") -> Layer:
    """The layer that has these weights in the model of ``config``."""
    on_torus = config.experiment != "cifar10"
    channels = 1 if on_torus else 3
    if weight.dim() == 4:
        side = _CIFAR_SIDE if not on_torus else (8 if config.dataset == "digits" else torus.SIDE)
        weight = _expanded(weight, config, (channels, side, side))
    else:
        side = math.isqrt(weight.shape[1] // channels)
    order = permutation(side, config.seed) if config.variant == "no-symmetry" else None
    return Layer(title, weight, (channels, side, side), on_torus, order)


def permutation(side: int, seed: int) -> Tensor:
    """The order of pixels in ``no-symmetry``: the first thing that a run's seed decides about its data."""
    return torch.randperm(side * side, generator=torch.Generator().manual_seed(seed))


def _expanded(weight: Tensor, config: Config, shape: filters.Shape) -> Tensor:
    layer = models.build(config, shape[1]).get_submodule("layer1")
    assert isinstance(layer, nn.Conv2d)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return filters.as_dense(layer, shape)
