"""Pool adjacent violators, from left to right: the paper's sequential baseline, O(d).

Section "Imminent Collisions": the order of collisions does not matter, so one queue, popped
particle by particle, finds them all. Here the queue is a stack of the clusters so far.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from weightshare.collisions.chain import Chain, Pooled
from weightshare.kernels import pool, threads


def sequential(chain: Chain) -> Pooled:
    """Compiled for the CPU, rows in parallel; a chain on another device makes the trip and comes back."""
    y, mass, offsets = (t.cpu().numpy() for t in (chain.y, chain.mass, chain.offsets))
    heads = np.zeros(y.size, dtype=np.bool_)
    stack = pool.scratch(y.size)
    workers = torch.get_num_threads()

    def rows(lo: int, hi: int) -> None:
        pool.pool_rows(y, mass, offsets, lo, hi, *stack, heads)

    parts = threads.split(offsets.size - 1, 4 * workers if workers > 1 else 1)
    threads.run([partial(rows, lo, hi) for lo, hi in parts], workers)
    return Pooled(torch.from_numpy(heads).to(chain.y.device), y.size)
