"""What every collisions algorithm takes and gives.

Pooling depends on the destinations ``y = x + v`` and the masses ``m`` alone, so an algorithm is one
function from a :class:`Chain` to a :class:`Pooled`. Where the clusters' own ``x`` and ``v`` matter
(zeroing, rewinding, the learning rate), they are segment means that the caller forms once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chain:
    """Particles in the order of space: several independent lines ("rows"), one after another.

    ``y``: destinations, float64, shape (n,). ``mass``: positive masses, float64, shape (n,).
    ``offsets``: int64, shape (rows + 1,); row r is ``y[offsets[r]:offsets[r + 1]]``.
    """

    y: Tensor
    mass: Tensor
    offsets: Tensor

    @classmethod
    def single(cls, y: Tensor, mass: Tensor | None = None) -> Chain:
        """One row; unit masses unless given."""
        y = y.to(torch.float64)
        mass = torch.ones_like(y) if mass is None else mass.to(torch.float64)
        return cls(y, mass, torch.tensor([0, y.numel()], device=y.device))

    @property
    def row_heads(self) -> Tensor:
        """Mask of the particles that come first in their row."""
        heads = torch.zeros(self.y.numel() + 1, dtype=torch.bool, device=self.y.device)
        heads[self.offsets[:-1]] = True
        return heads[:-1]

    @property
    def row_ids(self) -> Tensor:
        """Row of each particle."""
        sizes = self.offsets.diff()
        rows = torch.arange(sizes.numel(), device=self.y.device)
        return rows.repeat_interleave(sizes, output_size=self.y.numel())

    def padded(self, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """``y`` and ``mass`` as matrices with ``width`` columns (mass 0 marks padding), and the flat
        place of each particle in them."""
        rows = self.offsets.numel() - 1
        ids = self.row_ids
        place = ids * width + torch.arange(self.y.numel(), device=self.y.device) - self.offsets[ids]
        y = self.y.new_zeros(rows * width)
        mass = self.mass.new_zeros(rows * width)
        y[place] = self.y
        mass[place] = self.mass
        return y.view(rows, width), mass.view(rows, width), place

    @property
    def longest(self) -> int:
        """Number of particles in the longest row."""
        sizes = self.offsets.diff()
        return int(sizes.max()) if sizes.numel() else 0


@dataclass(frozen=True)
class Pooled:
    """The answer: ``heads[i]`` says whether particle ``i`` is the leftmost of its cluster.

    ``rounds`` counts the steps that follow one another (the depth in units of the algorithm's own
    parallel step), for the study of complexity.
    """

    heads: Tensor
    rounds: int


Algorithm = Callable[[Chain], Pooled]
