"""How much is shared: distinct values, zeros and bits, counted exactly; and the paper's own measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightshare import checks

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Summary:
    """Counts of a multiset of weights.

    >>> import torch
    >>> summary(torch.tensor([0.0, 2.0, 2.0, 3.0]))
    Summary(weights=4, distinct=3, zeros=1, entropy=1.5)
    """

    weights: int
    distinct: int
    zeros: int
    entropy: float
    """Bits per weight of the best code for the values as they are distributed: -sum p log2 p."""

    @classmethod
    def of(cls, values: np.ndarray, counts: np.ndarray) -> Summary:
        """Of the multiset in which each of these values occurs so often (see :func:`value_counts`)."""
        weights = int(counts.sum())
        share = counts / max(weights, 1)
        entropy = float(-(share * np.log2(share)).sum()) + 0.0
        return cls(weights, len(values), int(counts[values == 0].sum()), entropy)

    @property
    def index_bits(self) -> float:
        """Bits per weight of an index into the distinct values: log2 of their number."""
        return math.log2(self.distinct) if self.distinct else 0.0

    @property
    def sparsity(self) -> float:
        """Share of the weights that are zero."""
        return self.zeros / self.weights if self.weights else 0.0

    @property
    def sharing(self) -> float:
        """Share of the nonzero weights that others make redundant: 1 - distinct/nonzero, counted exactly."""
        nonzero = self.weights - self.zeros
        return 1.0 - (self.distinct - (self.zeros > 0)) / nonzero if nonzero else 0.0


def summary(w: Tensor | Sequence[Tensor]) -> Summary:
    """Count the distinct values (bitwise, but 0 and -0 are one), the zeros and the entropy of ``w``.

    Several tensors are counted as one multiset.
    """
    return Summary.of(*value_counts(w))


def value_counts(w: Tensor | Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of ``w`` in ascending order, as NumPy floats, and how often each occurs."""
    tensors = [w] if isinstance(w, Tensor) else list(w) or [torch.empty(0)]
    flat = [checks.float_tensor("w", t).detach().reshape(-1) for t in tensors]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    checks.finite("w", joined)
    joined = joined.cpu() + 0.0  # a copy, and -0.0 becomes 0.0
    if joined.dtype in _HALF:
        return _half_counts(joined)
    x = joined.numpy()
    x.sort()  # the vectorised sort of keys alone, many times as fast as torch.sort
    first = np.flatnonzero(np.r_[np.ones(min(len(x), 1), dtype=bool), x[1:] != x[:-1]])
    return x[first], np.diff(first, append=len(x))


def _half_counts(w: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """There are only 65,536 patterns of 16 bits: count them, no sort."""
    patterns = w.view(torch.int16).numpy().view(np.uint16)
    counts = np.bincount(patterns, minlength=1 << 16)
    used = np.flatnonzero(counts)
    values = torch.from_numpy(used.astype(np.uint16).view(np.int16)).view(w.dtype).to(torch.float64).numpy()
    order = np.argsort(values)
    return values[order], counts[used][order]


def weight_sharing(w: Tensor, digits: int = 8) -> float:
    """The paper's weight-sharing measure: 1 - distinct/nonzero after rounding to ``digits`` decimals.

    Values of large float32 layers coincide when rounded without any tie between them; compare published
    numbers with it, and judge by :attr:`Summary.sharing`. (The paper's text gives distinct/nonzero; its
    tables fit one minus that.)

    >>> import torch
    >>> weight_sharing(torch.tensor([0.0, 0.5, 0.5, 0.500000001, 0.25], dtype=torch.float64))
    0.5
    """
    rounded = torch.round(checks.float_tensor("w", w).detach().to(torch.float64), decimals=digits)
    return summary(rounded).sharing
