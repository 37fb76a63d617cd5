"""The paper's figures from stored results: one function from data to a matplotlib figure in each module."""

from __future__ import annotations

NAMES = ("ratio", "filters", "filters-random", "worst-case", "torus-samples", "regularization")
