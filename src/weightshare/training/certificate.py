"""How far from stationarity: the residual of the proximal gradient step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weightshare.distributed import of_each
from weightshare.training.methods import AfterStep
from weightshare.training.unit import Unit


def residuals(
    units: Sequence[Unit],
    sizes: Sequence[float],
    groups: dict[int, dict[str, Any]],
    grad_scale: float,
    step: int,
) -> list[dict[str, Any]]:
    """``|w - T(w - lr g)| / lr`` for every unit, T being its method's map: the prox-gradient residual."""
    rows = []
    for unit, size in zip(units, sizes):
        if not isinstance(unit.rule.what, AfterStep) or not unit.stepped() or size == 0:
            continue
        pairs = unit.mapped(size, grad_scale, groups[id(unit.members[0].tensor)], step)
        gaps = [(old.to(new.dtype) - new) / size for old, new in pairs]
        rows.append({"tensor": unit.name, "residual": _largest(gaps), "norm": _norm(gaps)})
    return rows


def _largest(gaps: Sequence[Tensor]) -> float:
    return max(size for gap in gaps for size in of_each(gap, largest))


def _norm(gaps: Sequence[Tensor]) -> float:
    squares = (square for gap in gaps for square in of_each(gap, lambda shard: float(shard.square().sum())))
    return math.sqrt(math.fsum(squares))


def largest(values: Tensor) -> float:
    """The largest magnitude; 0 of none."""
    return float(values.abs().max()) if values.numel() else 0.0
