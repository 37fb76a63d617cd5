"""Inputs by name: what training meets, and what an adversary would send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

STATE = Path(__file__).resolve().parents[1] / "build" / "train-state.npz"


def _noise(d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(d, np.float32)


def five_clusters(d: int) -> tuple[np.ndarray, float]:
    """Five centres, noise 2e-5, alpha 1e-3."""
    r = np.random.default_rng(1)
    centres = np.array([-0.8, -0.3, 0.05, 0.4, 0.9], np.float32)
    return centres[r.integers(0, 5, d, np.uint8)] + np.float32(2e-5) * _noise(d, 2), 1e-3


def cluster_and_tail(d: int) -> tuple[np.ndarray, float]:
    """95 % in one cluster, 5 % Gaussian tail."""
    tail = np.random.default_rng(1).random(d, np.float32) < 0.05
    return np.where(tail, _noise(d, 2), np.float32(0.1) + np.float32(2e-5) * _noise(d, 3)), 1e-3


def gaussian(d: int) -> tuple[np.ndarray, float]:
    """Nothing ties: every rank matters."""
    return _noise(d, 4), 1e-4


def training(d: int) -> tuple[np.ndarray, float]:
    """Weights of benchmarks/train_state.py before the prox of a late step, as many as that network has."""
    with np.load(STATE) as state:
        return state["weights"], float(state["alpha"])


def _spike(d: int) -> tuple[np.ndarray, float]:
    w = _noise(d, 5)
    w[np.random.default_rng(6).random(d, np.float32) < 0.9] = 0.0
    return w, 1e-6


def _geometric(d: int) -> tuple[np.ndarray, float]:
    exponent = np.random.default_rng(7).uniform(-30, 30, d).astype(np.float32)
    return np.exp2(exponent), 1e-3


def _outliers(d: int) -> tuple[np.ndarray, float]:
    w = _noise(d, 8)
    w[:2] = [1e30, -3e37]
    return w, 1e-4


def _interleaved(d: int) -> tuple[np.ndarray, float]:
    w = np.linspace(0, 1, d, dtype=np.float32)
    w[::2] += np.float32(0.3 / d)
    return np.random.default_rng(9).permutation(w), 0.4


def _staircase(d: int) -> tuple[np.ndarray, float]:
    """Equal spacing of exactly 2 c: every comparison is a tie."""
    n = min(d, 1 << 23)
    steps = np.arange(d, dtype=np.int64) % n
    return np.random.default_rng(10).permutation((steps * 2.0**-23).astype(np.float32)), (d - 1) * 2.0**-24


ADVERSARIAL: dict[str, Callable[[int], tuple[np.ndarray, float]]] = {
    "heavy tail (Cauchy cubed)": lambda d: (
        (np.random.default_rng(11).standard_cauchy(d) ** 3).clip(-1e37, 1e37).astype(np.float32),
        1e-4,
    ),
    "spike at zero": _spike,
    "float32 from bf16": lambda d: ((_noise(d, 12).view(np.uint32) & 0xFFFF0000).view(np.float32), 1e-6),
    "outliers of 1e30": _outliers,
    "denormals": lambda d: (
        (np.random.default_rng(13).integers(-(2**20), 2**20, d) * 2.0**-149).astype(np.float32),
        1e-44,
    ),
    "one cell of keys": lambda d: (1 + _noise(d, 14) * np.float32(1e-3), 1e-9),
    "one value": lambda d: (np.full(d, 0.1, np.float32), 1e-6),
    "two values": lambda d: (np.where(_noise(d, 15) > 0, np.float32(0.1), np.float32(0.3)), 1e-6),
    "geometric spacing": _geometric,
    "two interleaved clusters": _interleaved,
    "staircase of ties": _staircase,
    "tight clusters, tiny alpha": lambda d: (five_clusters(d)[0], 1e-9),
    "collisions everywhere": lambda d: (_noise(d, 16), 0.3),
    "many clusters": lambda d: (
        (np.random.default_rng(17).integers(0, 4096, d) / 256 + _noise(d, 18) * 1e-4).astype(np.float32),
        3e-2,
    ),
}  # fmt: skip


def worst_case(d: int) -> tuple[np.ndarray, float]:
    """The paper's worst case for imminent collisions: zeros, then a staircase just too steep to fall."""
    half = d // 2
    c = 1.0 / (d - 1)
    steps = 1e-4 + 2 * c * (1 + 1e-3) * np.arange(half)
    return np.concatenate([np.zeros(d - half), steps]).astype(np.float32), 1.0
