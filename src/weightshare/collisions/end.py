"""End Collisions (Algorithm 5): the leftmost cluster first; known as minimum lower sets.

Proposition 4.1: particle i collides with all particles up to ``rmc(i) = argmin_k avg(y_{i:k})``. That
cluster is then a closed system, and the next one starts right after it. Rows advance side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightshare.collisions.chain import Chain, Pooled


def rightmost_collision(y: Tensor, mass: Tensor, start: Tensor) -> Tensor:
    """Function RightmostCollision of Algorithm 1, for one start in each row of a matrix.

    Among equal averages the last one counts: particles that just touch collide. Columns of mass 0
    (padding, members of a cluster behind its head) are never an answer, unless nothing else is left.
    """
    column = torch.arange(y.shape[1], device=y.device)
    open_ = (column >= start[:, None]) & (mass > 0)
    m = torch.where(open_, mass, 0.0)
    # Relative to the first destination in play: no large common offset for the sums to carry.
    base = y.gather(1, open_.to(torch.int8).argmax(1, keepdim=True))
    average = ((y - base) * m).cumsum(1) / m.cumsum(1)
    average = torch.where(open_, average, torch.inf)
    lowest = average.amin(1, keepdim=True)
    return torch.where((average <= lowest) & open_, column, start[:, None]).amax(1)


def end(chain: Chain) -> Pooled:
    """Algorithm 5: O(d) work for each cluster, so good when few clusters form, O(d^2) at worst."""
    rows = chain.offsets.numel() - 1
    count = chain.y.numel()
    heads = torch.zeros(count + 1, dtype=torch.bool, device=chain.y.device)
    y, mass, _ = chain.padded(chain.longest)
    sizes = chain.offsets.diff()
    i = torch.zeros(rows, dtype=torch.int64, device=chain.y.device)
    rounds = 0
    while bool((i < sizes).any()):
        active = i < sizes
        # Rows that are done mark the spare place behind the last particle.
        heads[torch.where(active, chain.offsets[:-1] + i, count)] = True
        j = rightmost_collision(y, mass, i.clamp(max=max(y.shape[1] - 1, 0)))
        i = torch.where(active, j + 1, i)
        rounds += 1
    return Pooled(heads[:-1], rounds)
