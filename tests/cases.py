"""Vectors that every algorithm has to get right: one table for all tests."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def staircase(d: int, eps: float = 1e-4) -> torch.Tensor:
    """Destinations y of the paper's worst case: one long fall, then a slow climb (section 4.1)."""
    i = torch.arange(d, dtype=torch.float64)
    half = d // 2
    return torch.where(i <= half, 1 - 2 * i / max(d - 1, 1), eps * (i - half))


def staircase_weights(d: int, alpha: float = 1.0) -> torch.Tensor:
    """Weights whose destinations under ``alpha`` are the staircase (up to what must stay sorted)."""
    i = torch.arange(1, d + 1, dtype=torch.float64)
    return staircase(d) - alpha / max(d - 1, 1) * (d - 2 * i + 1)


def vectors() -> dict[str, list[float]]:
    """Named vectors of float64, up to 65 long."""
    rng = np.random.default_rng(0)
    table: dict[str, list[float]] = {
        "empty": [],
        "one": [0.3],
        "two": [1.0, -1.0],
        "three": [0.5, 0.1, 0.2],
        "all equal": [0.7] * 11,
        "sorted": np.linspace(-1, 1, 17).tolist(),
        "reversed": np.linspace(1, -1, 17).tolist(),
        "two values": [1.0, -1.0] * 8 + [1.0],
        "tied groups": [0.1, 0.1, 0.1, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9],
        "huge range": [1e30, -1e-30, 3.0, 1e15, -1e15, 2.0, 1e-8, -1e30],
        "one outlier": [1e30, *rng.normal(size=12).tolist()],
        "denormals": [5e-324, 1e-310, -1e-310, 0.0, 3e-322],
        "denormals of narrow dtypes": [1.5e-45, 4e-45, -1e-40, 9.2e-41, 6e-8, 1.2e-7, -6e-8, 2e-41, 0.0],
        "signed zeros": [0.0, -0.0, 0.0, -0.0, 1.0],
        "kearsley": [0.7, 1.0, 0.9, 0.99],
        "staircase": staircase_weights(33).tolist(),
        "spike at zero": [0.0] * 20 + rng.normal(size=10).tolist(),
        "heavy tail": rng.standard_cauchy(size=31).tolist(),
        "two interleaved clusters": (np.tile([0.0, 0.5], 16) + 1e-3 * rng.normal(size=32)).tolist(),
    }
    table["rewinding crosses zero"] = [1.05, 0.1, -5.0, -6.0, -7.0]
    for d in (2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65):
        table[f"normal {d}"] = rng.normal(size=d).tolist()
        table[f"coarse {d}"] = (np.round(2 * rng.normal(size=d)) / 2).tolist()
    return table


VECTORS = vectors()

weights = st.lists(
    st.one_of(
        st.floats(-4, 4, width=32),
        st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0]),
        st.floats(-1e6, 1e6, width=32),
        st.floats(-(2.0**-20), 2.0**-20, width=32),
    ),
    max_size=40,
)
alphas = st.one_of(st.sampled_from([0.0, 0.01, 0.25, 1.0, 100.0]), st.floats(0, 4, width=32))
