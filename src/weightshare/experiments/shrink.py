"""Ways to make a trained network small, and what the file then takes.

Everything is done to the weights (not the biases) of the layers that the config's method regularises or
would, so that all ways leave the same rest. The file is what :func:`weightshare.save` writes of the whole
state_dict.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weightshare as ws
from weightshare.experiments import measure
from weightshare.experiments.config import Config
from weightshare.experiments.models import regularized
from weightshare.training.after import prune_

AS_TRAINED = "as trained"
KMEANS = "k-means"
PRUNED = "pruned"
INTEGERS = {"int8": 8, "int4": 4}

KMEANS_BITS = (1, 2, 3, 4, 5, 6)
PRUNED_SHARES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
_SCALE = ".scale"


@dataclass(frozen=True)
class Way:
    """What is done to a trained network: a method, how much of it, and whether training goes on after it."""

    method: str
    level: float | None = None
    """Bits of k-means, share of zeros of pruning."""
    healed: bool = False

    def __str__(self) -> str:
        level = {
            KMEANS: f" to {self.level} bit{'s' if self.level != 1 else ''}",
            PRUNED: f" to {100 * (self.level or 0):g} % zeros",
        }
        return f"{self.method}{level.get(self.method, '')}{', healed' if self.healed else ''}"


def ways(config: Config) -> list[Way]:
    """What is done to the network of a run: everything to a plain one, nothing but healing to the others.

    A plain one that is "healed" has no ties: it shows what the additional epochs bring by themselves.
    """
    found = [Way(AS_TRAINED)]
    if config.method == "none":
        found += [Way(method) for method in INTEGERS]
        found += [Way(KMEANS, bits) for bits in KMEANS_BITS]
        found += [Way(PRUNED, share) for share in PRUNED_SHARES]
    healed = [Way(way.method, way.level, True) for way in found if way.method not in INTEGERS]
    return found + healed


def tied(config: Config, way: Way) -> bool:
    """Whether equal weights are equal on purpose, so that healing has to keep them so.

    In a large layer that nothing has tied some weights are equal by chance.
    """
    return way.method == KMEANS or config.method in ("prox", "subgradient")


def targets(config: Config) -> list[str]:
    """The weights that are changed."""
    return [name for layer in regularized(config).values() for name in layer if name.endswith(".weight")]


def apply_(model: nn.Module, config: Config, way: Way) -> None:
    """Tie or prune, in place; integers are made when the state is stored (:func:`to_integers`)."""
    if way.method == KMEANS:
        ws.tie(model, targets(config), bits=int(way.level or 0))
    elif way.method == PRUNED:
        prune_(model, float(way.level or 0.0), targets(config))


def to_integers(state: dict[str, Tensor], config: Config, bits: int) -> dict[str, Tensor]:
    """Weights rounded to the nearest of ``2 ** bits - 1`` evenly spaced values, symmetric, one scale a row.

    >>> from weightshare.experiments.recipes import recipe
    >>> config = recipe("digits/mlp", "smoke", layers=(1,))
    >>> rounded = to_integers({"layer1.weight": torch.tensor([[0.1, -0.7], [0.0, 0.0]])}, config, bits=4)
    >>> {name: tensor.tolist() for name, tensor in from_integers(rounded).items()}
    {'layer1.weight': [[0.10000000149011612, -0.699999988079071], [0.0, 0.0]]}
    """
    found = dict(state)
    most = (1 << (bits - 1)) - 1
    for name in targets(config):
        w = state[name]
        scale = w.abs().flatten(1).amax(1) / most
        scale[scale == 0] = 1.0
        each = scale.view(-1, *[1] * (w.ndim - 1))
        found[name] = (w / each).round().clamp(-most, most).to(torch.int8)
        found[name + _SCALE] = scale
    return found


def from_integers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with its weights as float32 again."""
    found = {name: tensor for name, tensor in state.items() if not name.endswith(_SCALE)}
    for name in state.keys() - found.keys():
        weight = name.removesuffix(_SCALE)
        found[weight] = state[weight] * state[name].view(-1, *[1] * (state[weight].ndim - 1))
    return found


def store_(model: nn.Module, config: Config, way: Way) -> dict[str, Any]:
    """Save the network, load it again from the file, and say what it took.

    ``bytes`` are those of the file, ``bits`` the same for each parameter of the network; ``layers`` has the
    regularised parameters, with what their data take in the file.
    """
    state = dict(model.state_dict())
    if way.method in INTEGERS:
        state = to_integers(state, config, INTEGERS[way.method])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.ws.safetensors"
        table = ws.save(state, path)
        size = path.stat().st_size
        model.load_state_dict(from_integers(ws.load(path)))
    after = {row["tensor"]: row["after"] for row in table}
    layers = {
        name: {**row, "bytes": after[name] + after.get(name + _SCALE, 0)}
        for name, row in measure.counts(model, config).items()
    }
    parameters = sum(p.numel() for p in model.parameters())
    weights, stored = (sum(row[key] for row in layers.values()) for key in ("weights", "bytes"))
    return {
        "parameters": parameters,
        "bytes": size,
        "bits": 8 * size / parameters,
        "layer_weights": weights,
        "layer_bytes": stored,
        "layer_bits": 8 * stored / weights,
        "layers": layers,
    }
