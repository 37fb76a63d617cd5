"""Conditions that certify a result, whoever computed it."""

from __future__ import annotations

import torch
from torch import Tensor


def subgradient_violation(g: Tensor, p: Tensor, alpha: float, beta: float = 0.0) -> float:
    """How far ``g`` is from the subdifferential of ``alpha R + beta l1`` at ``p`` (Eq. 9), at the worst.

    The subdifferential of alpha R at p is: on every group of equal entries, vectors majorised by the
    group's slopes alpha (2i - d - 1) / (d - 1); so its sorted partial sums may not exceed the slopes',
    and the totals agree. On the group at zero (all of p's zeros), beta adds an interval [-beta, beta]
    for every entry: the base polytope grows by beta k at both ends.
    """
    p, g = p.to(torch.float64).reshape(-1), g.to(torch.float64).reshape(-1)
    d = p.numel()
    slope = alpha * (2 * torch.arange(1, d + 1, dtype=torch.float64) - d - 1) / max(d - 1, 1)
    order = p.argsort(stable=True)
    p, g = p[order], g[order]
    worst = 0.0
    start = 0
    while start < d:
        stop = start + int((p[start:] == p[start]).sum())
        ours = (g[start:stop] - beta * torch.sign(p[start])).sort(descending=True).values
        k = torch.arange(1, stop - start + 1, dtype=torch.float64)
        slack = beta * k if float(p[start]) == 0.0 else torch.zeros_like(k)
        top = slope[start:stop].flip(0).cumsum(0)
        low = slope[start:stop].cumsum(0)
        worst = max(worst, float((ours.cumsum(0) - top - slack).max()))
        worst = max(worst, float((low - slack - ours.flip(0).cumsum(0)).max()))
        start = stop
    return worst


def objective(u: Tensor, w: Tensor, alpha: float, beta: float = 0.0) -> float:
    """``alpha R(u) + beta |u|_1 + 1/2 |u - w|^2`` from the definition."""
    u, w = u.to(torch.float64).reshape(-1), w.to(torch.float64).reshape(-1)
    pairs = (u[:, None] - u[None, :]).abs().sum() / 2 / max(u.numel() - 1, 1)
    return float(alpha * pairs + beta * u.abs().sum() + 0.5 * (u - w).square().sum())
