"""Imminent Collisions (Algorithms 3 and 4 of the paper, its appendix "Pseudocodes").

A collision of neighbours is imminent when ``y_i >= y_{i+1}``; it happens whatever else happens. All
imminent collisions are performed in parallel, round by round, until none is left. The rows of a chain
advance together, as one vector in which no cluster reaches over the start of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightshare.collisions.chain import Chain, Pooled


@dataclass
class Clustered:
    """The particles that are left: mean destination, mass, original place, and whether a row starts here."""

    y: Tensor
    mass: Tensor
    first: Tensor
    row_head: Tensor

    @classmethod
    def of(cls, chain: Chain) -> Clustered:
        first = torch.arange(chain.y.numel(), device=chain.y.device)
        return cls(chain.y, chain.mass, first, chain.row_heads)

    def merged(self, heads: Tensor) -> Clustered:
        """Merge every particle that is not a head into the head before it (mass-weighted means)."""
        into = heads.cumsum(0) - 1
        first = self.first[heads]
        mass = self.mass.new_zeros(first.numel()).index_add_(0, into, self.mass)
        # Means are taken relative to the head: exact for equal values, and no large sums to cancel.
        head_y = self.y[heads]
        shift = self.y.new_zeros(first.numel()).index_add_(0, into, (self.y - head_y[into]) * self.mass)
        return Clustered(head_y + shift / mass, mass, first, self.row_head[heads])

    def heads(self, count: int) -> Tensor:
        """Mask over the original ``count`` particles."""
        mask = torch.zeros(count, dtype=torch.bool, device=self.y.device)
        mask[self.first] = True
        return mask


def imminent(chain: Chain) -> Pooled:
    """Algorithm 3 (v2): whole runs of imminent collisions merge at once, by a prefix sum."""
    state = Clustered.of(chain)
    rounds = 0
    while True:
        state, done = collisions_round(state)
        if done:
            return Pooled(state.heads(chain.y.numel()), rounds)
        rounds += 1


def collisions_round(state: Clustered) -> tuple[Clustered, bool]:
    """One round of Algorithm 3; also says whether nothing was left to do."""
    heads = state.row_head.clone()
    heads[1:] |= state.y[:-1] < state.y[1:]
    if bool(heads.all()):
        return state, True
    return state.merged(heads), False


def imminent_v1(chain: Chain) -> Pooled:
    """Algorithm 4 (v1): pairs (1,2), (3,4), ... collide, then pairs (2,3), (4,5), ..."""
    state = Clustered.of(chain)
    rounds = 0
    while True:
        before = state.y.numel()
        state = _pair_round(state, 0)
        state = _pair_round(state, 1)
        if state.y.numel() == before:
            return Pooled(state.heads(chain.y.numel()), rounds)
        rounds += 1


def _pair_round(state: Clustered, offset: int) -> Clustered:
    """Merge the pairs that start at places of parity ``offset`` within their row, where imminent.

    DEPARTS from the listing of Algorithm 4, which compares with ``>``: equal destinations collide
    (``>=``), as the text says, so that every algorithm returns the same clusters.
    """
    index = torch.arange(state.y.numel(), device=state.y.device)
    row_start = torch.where(state.row_head, index, 0).cummax(0).values if index.numel() else index
    is_second = (index - row_start) % 2 == 1 - offset
    is_second &= ~state.row_head
    heads = torch.ones_like(state.row_head)
    heads[1:] = ~(is_second[1:] & (state.y[:-1] >= state.y[1:]))
    return state.merged(heads)
