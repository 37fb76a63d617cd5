"""Ties to be kept: which weights are equal, what gradient they share, and how optimizer state is merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from weightshare.clusters import Clusters
from weightshare.prox import prox
from weightshare.training.names import Named, listed
from weightshare.training.vectors import Per, change_

# Optimizer state by what it is made of: gradients (linear), squares of gradients, magnitudes of gradients,
# or quantities that belong to a weight as such.
_LINEAR = ("momentum_buffer", "exp_avg", "grad_avg", "prev", "d")
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
_MAGNITUDES = ("exp_inf",)
_AVERAGED = ("ax", "step_size", "acc_delta")


class Ties:
    """Which weights of one tensor, or of several that are one vector, are equal, and which are zero."""

    def __init__(self, members: Sequence[Named], per: Per, gradient: str) -> None:
        self.names, self.tensors = [p.name for p in members], [p.tensor for p in members]
        self.per, self.mean = per, gradient == "mean"
        self._clusters: list[Clusters] = []
        self._alive: list[Tensor] = []

        def note(vector: Tensor, dim: int | None) -> None:
            # With alpha = 0 nothing moves: the clusters are the runs of equal values.
            clusters = prox(vector, 0.0, dim=dim, return_clusters=True)[1]
            self._clusters.append(clusters)
            self._alive.append((clusters.means(vector) != 0).to(torch.float64))

        change_([t.detach().clone() for t in self.tensors], per, note)

    @property
    def count(self) -> int:
        """Number of values that are trained."""
        return int(sum(float(alive.sum()) for alive in self._alive))

    def common(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The derivative with respect to the shared value, for each of its weights; 0 for the zeros."""
        made = [g.clone() for g in grads]
        self._change_(made, lambda means, sizes: means if self.mean else means * sizes)
        return made

    def tie_(self) -> None:
        """Make the weights of each cluster equal to their mean; equal ones stay as they are."""
        self._change_([t.detach() for t in self.tensors], lambda means, sizes: means)

    def state_of(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        """The entries of an optimizer's state that belong to single weights: for each tensor one."""
        states = [
            {k: v for k, v in optimizer.state.get(t, {}).items() if _per_weight(v, t)} for t in self.tensors
        ]
        if any(state.keys() != states[0].keys() for state in states):
            raise ValueError(
                f"the optimizer has different state for {listed(self.names)}, which share values; start a "
                f"new optimizer for the frozen model, and leave optimizer= out"
            )
        for key in states[0]:
            _kind(key)  # raises for what it does not know
        return {key: [state[key] for state in states] for key in states[0]}

    def merge_(self, key: str, state: Sequence[Tensor]) -> None:
        """Make one entry of optimizer state out of those of tied weights; see ``freeze_clusters``."""
        kind = _kind(key)
        if kind == "averaged":
            self._change_(state, lambda means, sizes: means)
            return
        squares = kind == "squares"
        merged = self.common([s.sqrt() for s in state] if squares else state)
        for old, new in zip(state, merged):
            old.copy_(new.square() if squares else new)

    def _change_(self, values: Sequence[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Give every member of a cluster ``combine`` of the cluster's mean and size; to zeros, 0."""
        parts = zip(self._clusters, self._alive)

        def change(vector: Tensor, dim: int | None) -> None:
            clusters, alive = next(parts)
            means = clusters.means(vector.to(torch.float64))
            vector.copy_(clusters.expand(combine(means, clusters.sizes) * alive))

        change_(values, self.per, change)


def _per_weight(value: object, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == tensor.shape


def _kind(key: str) -> str:
    kinds = {"linear": _LINEAR, "squares": _SQUARES, "magnitudes": _MAGNITUDES, "averaged": _AVERAGED}
    for kind, keys in kinds.items():
        if key in keys:
            return kind
    known = listed([key for keys in kinds.values() for key in keys])
    raise ValueError(
        f"do not know how to merge the optimizer state {key!r} (known are {known}); start a new optimizer "
        f"for the frozen model, and leave optimizer= out"
    )
