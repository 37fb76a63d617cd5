"""Bridge: pooled halves merged by bisection for their common tangent. O(d) work after the sort.

Pooled halves are lower convex hulls of the points (mass so far, sum so far), so that the one cluster
that forms between them is the hulls' common tangent (Overmars and van Leeuwen, 1981). Each probe of
the bisection reads two prefix sums where Algorithm 1 scans the whole problem: O(log^2 d) for a merge,
and tiles that were pooled from left to right first leave d / TILE merges: O(d) in all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from weightshare.collisions.chain import Chain, Pooled
from weightshare.collisions.sequential import sequential
from weightshare.kernels import pool, threads

TILE = 1024

# Prefix sums carry about 106 bits. Masses may differ by as much as leaves every cluster a full float64.
WIDEST_MASSES = 2.0**50


def bridge(chain: Chain, tile: int = TILE) -> Pooled:
    """Compiled for the CPU; tiles of all rows in parallel, then the merges of each level in parallel.

    Masses that span more than 2^50 (possible in isotonic regression only) are pooled sequentially,
    since differences of their prefix sums would not be exact enough.
    """
    if chain.y.numel() == 0:
        return Pooled(chain.row_heads, 0)
    if float(chain.mass.sum() / chain.mass.min()) > WIDEST_MASSES:
        return sequential(chain)
    y, mass, offsets = (t.cpu().numpy() for t in (chain.y, chain.mass, chain.offsets))
    forest = _Forest(y, mass, offsets, tile)
    rounds = forest.pool()
    return Pooled(torch.from_numpy(forest.heads()).to(chain.y.device), rounds)


class _Forest:
    """Clusters as a forest over places: members point towards their head, heads know their end.

    Prefix sums start anew in each row, and each row has one place more than it has particles; so the
    arrays here are longer than the chain by the number of rows, and row r begins at ``base[r]``.
    """

    def __init__(self, y: np.ndarray, mass: np.ndarray, offsets: np.ndarray, tile: int) -> None:
        self.workers = torch.get_num_threads()
        self.offsets = offsets
        self.base = offsets[:-1] + np.arange(offsets.size - 1)
        size = y.size + offsets.size
        self.sums = np.empty((size, 2))
        self.weights = np.empty((size, 2))
        self.parent = np.empty(size, dtype=np.int64)
        self.end = np.empty(size, dtype=np.int64)
        self.y, self.mass = y, mass
        self.tile = tile

    def _parallel(self, kernel: Callable[[int, int], None], count: int) -> None:
        parts = threads.split(count, 4 * self.workers if self.workers > 1 else 1)
        threads.run([partial(kernel, lo, hi) for lo, hi in parts], self.workers)

    def pool(self) -> int:
        """Pool all tiles, then merge neighbours level by level; returns the number of levels."""
        sizes = self.offsets[1:] - self.offsets[:-1]
        self._parallel(
            lambda lo, hi: pool.forest_rows(
                self.y, self.mass, self.offsets, self.base, lo, hi, self.sums, self.weights
            ),
            sizes.size,
        )
        tiles = -(-sizes // self.tile)
        first_tile = np.concatenate([[0], np.cumsum(tiles)])
        row_of_tile = np.repeat(np.arange(sizes.size), tiles)
        stack = pool.scratch(self.y.size)
        self._parallel(
            lambda lo, hi: pool.pool_tiles(
                self.y, self.mass, self.offsets, self.base, row_of_tile, first_tile, self.tile,
                lo, hi, *stack, self.parent, self.end,
            ),
            row_of_tile.size,
        )  # fmt: skip
        width, levels = self.tile, 0
        while width < sizes.max():
            self._merge(sizes, width)
            width, levels = 2 * width, levels + 1
        return levels

    def _merge(self, sizes: np.ndarray, width: int) -> None:
        """One level of the tree: halves of ``width`` places become one, in all rows."""
        merges = -(-sizes // (2 * width))
        first = np.concatenate([[0], np.cumsum(merges)])
        row = np.repeat(np.arange(sizes.size), merges)
        self._parallel(
            lambda lo, hi: pool.merge_level(
                self.base, sizes, row, first, width, lo, hi, self.parent, self.end, self.sums, self.weights
            ),
            row.size,
        )

    def heads(self) -> np.ndarray:
        """Mask of the heads, in the chain's own places."""
        result = np.empty(self.y.size, dtype=np.bool_)
        pool.mark_heads(self.parent, self.offsets, self.base, result)
        return result
