"""What the solvers return for rows of vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weightshare.certified import Info

ZEROED = 2
"""Gate of a weight that line 7 of Algorithm 2 set to zero; otherwise the gate is the sign of x + v."""

Hint = tuple[Tensor, Tensor] | None
"""Values and sizes of clusters that are expected: a matter of speed, never of the result."""


@dataclass(frozen=True)
class Table:
    """The clusters of a single row, where the solver lists them: first places, values, gates."""

    starts: Tensor
    values: Tensor
    gate: Tensor


@dataclass(frozen=True)
class Solution:
    """Rows of results. ``ids``: cluster of each weight within its row; ``gate``: see :data:`ZEROED`."""

    out: Tensor
    ids: Tensor
    gate: Tensor
    info: Info
    table: Table | None = None
