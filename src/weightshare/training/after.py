"""Baselines applied once, to a model that is trained already: optimal 1-D k-means and magnitude pruning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weightshare.training import inputs, names
from weightshare.training.baselines import prune_vectors_
from weightshare.training.kmeans import cluster_
from weightshare.training.names import Named
from weightshare.training.rules import Rule, resolve, shared_by_default, units
from weightshare.training.vectors import Per, change_


@torch.no_grad()
def prune_(model: nn.Module, zeros: float, select: Any = None, *, per: Per = "tensor") -> None:
    """Set the share ``zeros`` of smallest magnitude in each vector to zero.

    ``select`` and ``per`` are those of :class:`Rule`; left out, the weights of every Linear and Conv.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[0.1, -3.0, 0.2, 1.0]]))
    >>> prune_(model, 0.5)
    >>> model.weight.data
    tensor([[ 0., -3.,  0.,  1.]])
    """
    if not 0.0 <= inputs.number("zeros", zeros) <= 1.0:
        raise ValueError(f"zeros must be in [0, 1], got {zeros}")
    for group in selected(model, select, per):
        tensors = [p.tensor.detach() for p in group]
        change_(tensors, per, lambda vector, dim: prune_vectors_(vector, zeros, dim))


@torch.no_grad()
def kmeans_(model: nn.Module, clusters: int, select: Any = None, *, per: Per = "tensor") -> None:
    """Replace every weight by the mean of its cluster, for the clusters of least squared error.

    Exact where a vector has at most 65,536 distinct values; beyond, the mean squared error exceeds the
    least possible by at most (range / 21,845)^2 (:mod:`weightshare.training.kmeans`).

    >>> import torch
    >>> model = torch.nn.Linear(5, 1)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[0.0, 5.0, 1.0, 5.0, 6.5]]))
    >>> kmeans_(model, 2)
    >>> model.weight.data
    tensor([[0.5000, 5.5000, 0.5000, 5.5000, 5.5000]])
    """
    inputs.whole("clusters", clusters, least=1)

    def change(vector: Tensor, dim: int | None) -> None:
        for row in [vector] if dim is None else vector.unbind(1 - dim):
            cluster_(row, clusters)

    for group in selected(model, select, per):
        change_([p.tensor.detach() for p in group], per, change)


def selected(model: nn.Module, select: Any, per: Per) -> list[list[Named]]:
    """The parameters that are changed together: one by one, or all of them as a group."""
    names.check_module(model)
    parameters = list(model.parameters())
    rule = Rule(shared_by_default(model, parameters) if select is None else select, alpha=0.0, per=per)
    return units(rule, resolve([rule], model, parameters)[0])
