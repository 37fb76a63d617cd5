"""The penalty R (Eq. 1) and its canonical subgradient, in O(d log d) (appendix "Computing R")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weightshare import checks
from weightshare.kernels.cpu.ranks import mean_ranks
from weightshare.kernels.cpu.rows import row_words
from weightshare.rows import Rows


def penalty(w: Tensor, *, dim: int | None = None) -> Tensor:
    """Compute ``R(w) = 1/(d-1) * sum_{i>j} |w_i - w_j|`` (Eq. 1 of the paper).

    Differentiable: the gradient is the subgradient that gives tied weights the mean of their ranks
    (:func:`subgradient`). ``dim=None`` takes the whole tensor as one vector; with ``dim`` every slice
    along it is a vector of its own and the result has one value for each. Vectors of fewer than two
    weights have R = 0. The result has the dtype of ``w``: R grows with the number of weights, so that of a
    long float16 vector can be inf; take ``w.float()`` there. Under ``torch.compile`` and ``vmap`` the check
    for NaN and inf is left out.

    >>> import torch, weightshare as ws
    >>> ws.penalty(torch.tensor([1.0, 4.0, 2.0]))
    tensor(3.)
    """
    rows = Rows.of(checks.float_tensor("w", w), dim)
    if not checks.opaque(w):
        checks.finite("w", w.detach())
    values = rows.values
    d = values.shape[-1]
    detached = values.detach()
    x = _ordered(detached) if _at_hand(values) else detached.to(torch.float64).sort(dim=-1).values
    # R = 1/(d-1) sum_k k (d-k) (x_(k+1) - x_(k)): the sum over pairs, gathered by gap. No term is
    # negative, so nothing cancels, and tied weights give exactly zero.
    k = torch.arange(1, max(d, 1), device=x.device, dtype=torch.float64)
    result = ((k / max(d - 1, 1)) * (d - k) * x.diff(dim=-1)).sum(-1)
    if values.requires_grad or checks.has_tangent(values):
        # Adds zero to the value and the subgradient to the derivative.
        slope = _mean_ranks(detached)
        result = result + (slope * (values - values.detach()).to(torch.float64)).sum(-1)
    return rows.restore_reduced(result.to(w.dtype))


def subgradient(w: Tensor, *, dim: int | None = None) -> Tensor:
    """Return the subgradient of R at ``w`` in which ties share their ranks: minus the velocity of Eq. (10).

    For distinct weights this is the gradient ``(2 rank - d - 1) / (d - 1)`` (Eq. 7); a run of equal
    weights gets the mean over its ranks, the average over all active hyperplanes (Eq. 9).

    >>> import torch, weightshare as ws
    >>> ws.subgradient(torch.tensor([1.0, 4.0, 2.0, 2.0, 5.0]))
    tensor([-1.0000,  0.5000, -0.2500, -0.2500,  1.0000])
    """
    rows = Rows.of(checks.float_tensor("w", w), dim)
    if not checks.opaque(w):
        checks.finite("w", w.detach())
    return rows.restore(_mean_ranks(rows.values.detach()).to(w.dtype))


def _at_hand(values: Tensor) -> bool:
    """Whether compiled code can look at the numbers."""
    return not checks.opaque(values) and values.device.type == "cpu"


def _mean_ranks(values: Tensor) -> Tensor:
    """The subgradient in float64, for rows of values."""
    d = values.shape[-1]
    if d < 2:
        return torch.zeros_like(values, dtype=torch.float64)
    if _at_hand(values) and values.dtype != torch.float64 and d < 1 << 32:
        return _compiled_ranks(values)
    x, order = values.sort(dim=-1)
    index = torch.arange(d, device=x.device).expand(x.shape)
    new = torch.ones_like(x, dtype=torch.bool)
    new[..., 1:] = x[..., 1:] != x[..., :-1]
    first = torch.where(new, index, 0).cummax(-1).values
    last = torch.ones_like(new)
    last[..., :-1] = new[..., 1:]
    stop = torch.where(last, index + 1, d).flip(-1).cummin(-1).values.flip(-1)
    rank = (first + stop - d).to(torch.float64) / (d - 1)
    return torch.zeros_like(rank).scatter(-1, order, rank)


def _compiled_ranks(values: Tensor) -> Tensor:
    """Eq. (9) for rows of float32 or less, in float64: the slope of R, with the mean rank of equal values."""
    values = values.detach()
    keys = values.to(torch.float32).contiguous().numpy().view(np.uint32)
    words = np.empty(keys.shape, np.uint64)
    row_words(keys, words)
    words.sort(axis=1)
    out = values.new_empty(values.shape, dtype=torch.float64)
    mean_ranks(words, out.numpy())
    return out


def _ordered(values: Tensor) -> Tensor:
    """Rows in ascending order, in float64: NumPy sorts several times faster than PyTorch."""
    narrow = values.dtype not in (torch.float32, torch.float64)
    out = values.detach().to(torch.float32 if narrow else values.dtype, copy=True).contiguous()
    out.numpy().sort(axis=1)
    return out.to(torch.float64)
