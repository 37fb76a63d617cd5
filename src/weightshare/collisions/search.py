"""Search Collisions (Algorithm 1): divide, solve the halves as closed systems, search for the one cluster
that forms between them. Depth O(log^3 d) with enough processors, work O(d log^2 d).

All problems of a level, in all rows, are solved at once: level l holds problems of size 2^l.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightshare.collisions.chain import Chain, Pooled
from weightshare.collisions.end import rightmost_collision


def search(chain: Chain) -> Pooled:
    """Function SearchCollisions of Algorithm 1, without the recursion."""
    count = chain.y.numel()
    longest = chain.longest
    if longest <= 1:
        return Pooled(chain.row_heads, 0)
    levels = (longest - 1).bit_length()
    y, mass, place = chain.padded(1 << levels)  # zero mass at the ends: sizes become powers of 2
    rounds = 0
    for level in range(1, levels + 1):
        shape = (-1, 1 << level)
        y, mass, probes = _merge(y.reshape(shape), mass.reshape(shape))
        rounds += probes
    # A particle of positive mass is the head of a cluster; the others have given theirs away.
    return Pooled(mass.reshape(-1)[place] > 0 if count else chain.row_heads, rounds)


def _merge(y: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, int]:
    """Function Merge: binary search for the leftmost particle i* that takes part (Theorem 4.2).

    DEPARTS from the listing in two ways. A probe that falls on a member of a cluster is moved to the
    cluster's head, where the mass is. And "no particle of the left half takes part" is an answer of
    the search (i* = half), not a case for a later ``if``.
    """
    size = y.shape[1]
    half = size // 2
    column = torch.arange(size, device=y.device)
    head = torch.where(mass > 0, column, 0).cummax(1).values
    low = torch.zeros(y.shape[0], dtype=torch.int64, device=y.device)
    high = torch.full_like(low, half)
    probes = half.bit_length()
    for _ in range(probes):
        middle = ((low + high) // 2).clamp(max=half - 1)
        start = head.gather(1, middle[:, None]).squeeze(1)
        crosses = rightmost_collision(y, mass, start) >= half
        open_ = low < high
        high = torch.where(open_ & crosses, middle, high)
        low = torch.where(open_ & ~crosses, middle + 1, low)
    start = torch.where(low < half, head.gather(1, low.clamp(max=half - 1)[:, None]).squeeze(1), half)
    stop = rightmost_collision(y, mass, start)
    stop = torch.where(low < half, stop, start)
    return *_perform_collisions(y, mass, start, stop), probes + 1


def _perform_collisions(y: Tensor, mass: Tensor, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Function PerformCollisions: the cluster's mass and mean go to its head, its members keep none."""
    column = torch.arange(y.shape[1], device=y.device)
    inside = (column >= start[:, None]) & (column <= stop[:, None])
    # Nothing moves where a problem has no collision: a one-particle "cluster" keeps its bits.
    inside &= (stop > start)[:, None]
    m = torch.where(inside, mass, 0.0)
    total = m.sum(1, keepdim=True)
    base = y.gather(1, start[:, None])
    mean = base + ((y - base) * m).sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    at_head = inside & (column == start[:, None])
    y = torch.where(at_head, mean, y)
    mass = torch.where(at_head, total, torch.where(inside, 0.0, mass))
    return y, mass
