"""What can be told of a tensor in shards without gathering it: distinct values, numbers of each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weightshare import metrics
from weightshare.distributed.dtensor import is_dtensor, unshard, wire_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Counted = tuple[np.ndarray, np.ndarray]


def value_counts(w: Tensor | Sequence[Tensor]) -> Counted:
    """The distinct values of ``w`` in ascending order and how often each occurs, also of DTensors.

    :func:`weightshare.metrics.value_counts`; of a tensor in shards the ranks exchange the distinct values,
    or the weights if these are fewer bytes. All ranks must call.

    >>> import torch
    >>> value_counts(torch.tensor([2.0, 0.0, 2.0]))
    (array([0., 2.], dtype=float32), array([1, 2]))
    """
    tensors = [w] if isinstance(w, Tensor) else list(w)
    if not any(map(is_dtensor, tensors)):
        return metrics.value_counts(tensors)
    return _merged([_of_shards(t) if is_dtensor(t) else metrics.value_counts(t) for t in tensors])


def _of_shards(w: DTensor) -> Counted:
    wire, local = wire_of(w), w.to_local().detach()
    if wire.ranks == 1:
        return metrics.value_counts(local)
    finite = bool(torch.isfinite(local).all())
    values, counts = metrics.value_counts(local if finite else local.reshape(-1)[:0])
    table = wire.rows([finite, len(values)], "the exchange of the numbers of values")
    room = wire.ranks * int(table[:, 1].max()) * (values.itemsize + counts.itemsize)
    if not table[:, 0].all() or room >= w.numel() * w.element_size():
        return metrics.value_counts(unshard(w, wire=wire))  # raises on all ranks, where one is not finite
    sizes: list[int] = table[:, 1].tolist()
    every = wire.gather(values, sizes, "the exchange of distinct values")
    return _merged([(every, wire.gather(counts, sizes, "the exchange of their counts"))])


def _merged(parts: Sequence[Counted]) -> Counted:
    """One count of all parts, which may have values in common."""
    every = np.concatenate([values for values, _ in parts])
    values, place = np.unique(every, return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return values, counts


def of_each(w: Tensor, number: Callable[[Tensor], float]) -> list[float]:
    """``number`` of this tensor; of a DTensor, of the shard of every rank, which must all call.

    >>> import torch
    >>> of_each(torch.ones(3), lambda shard: float(shard.sum()))
    [3.0]
    """
    if not is_dtensor(w):
        return [number(w)]
    mine = np.asarray([number(w.to_local())]).view(np.int64)
    found = wire_of(w).rows(mine.tolist(), "the exchange of a number")
    numbers: list[float] = found[:, 0].copy().view(np.float64).tolist()
    return numbers
