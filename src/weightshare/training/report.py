"""Tables of what is shared: printed as plain text, and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightshare.distributed import value_counts, whole
from weightshare.metrics import Summary
from weightshare.penalty import penalty
from weightshare.training.names import Model, named_parameters
from weightshare.training.vectors import Per, gathered

Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of named entries, which print as an aligned table.

    >>> table = Table([{"tensor": "fc1.weight", "distinct": 1200}, {"tensor": "fc2.weight", "distinct": 7}])
    >>> table
    tensor      distinct
    fc1.weight     1,200
    fc2.weight         7
    >>> table.scalars("sharing/")
    {'sharing/fc1.weight/distinct': 1200, 'sharing/fc2.weight/distinct': 7}
    """

    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, tensor: str) -> Row:
        """The row of the tensor of that name."""
        for row in self.rows:
            if row["tensor"] == tensor:
                return row
        raise KeyError(
            f"no row for {tensor!r}; there are {', '.join(repr(row['tensor']) for row in self.rows)}"
        )

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Every number under ``prefix + tensor + "/" + column``: what loggers take."""
        return {
            f"{prefix}{row['tensor']}/{column}": value
            for row in self.rows
            for column, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }

    def __repr__(self) -> str:
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        return "\n".join(map(str.rstrip, map("  ".join, zip(*map(self._column, columns)))))

    def _column(self, name: str) -> list[str]:
        """The head and the cells of one column, padded: words to the left, numbers to the right."""
        values = [row.get(name) for row in self.rows]
        words = all(isinstance(value, (str, bool, type(None))) for value in values)
        cells = [name, *map(_cell, values)]
        width = max(map(len, cells))
        return [f"{cell:<{width}}" if words else f"{cell:>{width}}" for cell in cells]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(model: Model) -> Table:
    """Count what is shared in every floating-point parameter of any model, and in all of them together.

    The columns: weights, distinct values, zeros, bits per weight (the entropy of the values), and R of the
    tensor as one vector (Eq. 1).

    >>> import torch
    >>> model = torch.nn.Linear(4, 2)
    >>> with torch.no_grad(): _ = model.weight.fill_(0.5), model.bias.zero_()
    >>> report(model)
    tensor  weights  distinct  zero  bits  R
    weight        8         1     0     0  0
    bias          2         1     2     0  0
    total        10         2     2
    """
    floats = [p for p in named_parameters(model) if p.tensor.is_floating_point()]
    rows = [describe(p.name, [p.tensor], "tensor") for p in floats]
    return Table([*rows, total(rows)])


def describe(name: str, tensors: Sequence[Tensor], per: Per) -> dict[str, Any]:
    """The row of one tensor, or of a group; R is summed over the vectors."""
    values = [_readable(name, t.detach()) for t in tensors]
    if per not in ("tensor", "group"):
        values = [whole(v) for v in values]
    try:
        counted = value_counts(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    found = Summary.of(*counted)
    r = _penalty(*counted) if per in ("tensor", "group") else _penalty_of_each(values, per)
    return {
        "tensor": name,
        "weights": found.weights,
        "distinct": found.distinct,
        "zero": found.zeros,
        "bits": found.entropy,
        "R": r,
    }


def _readable(name: str, values: Tensor) -> Tensor:
    """Weights as they can be counted: those of 8 bits in float32, which holds them exactly."""
    if values.is_meta:
        raise ValueError(f"{name!r} is on the meta device and has no values yet; materialise the model first")
    return values.to(torch.float32) if values.dtype.itemsize == 1 else values


def _penalty(values: np.ndarray, counts: np.ndarray) -> float:
    """R of one vector (Eq. 1), from its distinct values in ascending order and how often each occurs."""
    d = int(counts.sum())
    if d < 2:
        return 0.0
    x = values.astype(np.float64)
    slopes = counts * (2 * np.cumsum(counts) - counts - d)  # they add up to 0, so x may be shifted
    return float(((x - x[len(x) // 2]) * slopes).sum() / (d - 1))


@torch.no_grad()
def _penalty_of_each(values: Sequence[Tensor], per: Per) -> float:
    """R, added up over the vectors."""
    return math.fsum(float(penalty(v.double(), dim=dim).sum()) for v, dim in gathered(values, per))


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """The last row: what can be added up over tensors."""
    sums = {key: sum(row[key] for row in rows) for key in ("weights", "distinct", "zero")}
    exchanged = sum(row.get("exchanged", 0) for row in rows)
    return {"tensor": "total", **sums, **({"exchanged": exchanged} if exchanged else {})}
