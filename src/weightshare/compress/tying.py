"""Tie the weights of a model that was trained without: few values, chosen once, for what is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weightshare import checks
from weightshare.metrics import summary
from weightshare.prox import prox, prox_
from weightshare.training import inputs
from weightshare.training.after import selected
from weightshare.training.kmeans import cluster_
from weightshare.training.names import Named
from weightshare.training.report import Table
from weightshare.training.vectors import Per, change_

METHODS = ("kmeans", "prox")
_MOST_BITS = 16
_ROUNDS = 40
_PRECISION = 1.0001


@torch.no_grad()
def tie(
    model: nn.Module,
    select: Any = None,
    *,
    bits: int | None = None,
    distinct: int | None = None,
    method: str = "kmeans",
    per: Per = "tensor",
    rho: float | None = None,
    keep_zeros: bool = False,
) -> Table:
    """Replace the weights of each vector by at most ``distinct`` (or ``2 ** bits``) values, in place.

    Args:
        model: a trained model; its parameters stay the same objects.
        select: names, globs or module types as in :class:`Rule`; left out, the weights of every Linear
            and Conv.
        bits: how many bits tell the values of a vector apart.
        distinct: or, how many values a vector may have.
        method: ``"kmeans"``: the clusters of least squared error, each replaced by its mean (exact where a
            vector has at most 65,536 distinct values; beyond, its mean squared error exceeds the least
            possible by at most (range / 21,845)^2). ``"prox"``: the prox of ``alpha R`` for the least
            ``alpha`` that leaves so few clusters; what is in the middle of the distribution joins first.
        per: what is one vector with values of its own, as in :class:`Rule`.
        rho: rewinding of the prox; left out, 1: clusters stay at the mean of their weights.
        keep_zeros: with k-means, zeros stay zeros, and 0 is one of the values.

    Returns for every tensor (or group): weights, distinct values before and after, bits per weight
    (entropy) after, and the root mean square of the change over that of the weights. What this costs in
    accuracy can be won back by training the values on: :func:`freeze_clusters`. To make use of the
    ties: ``weightshare.save``, :func:`compact`.

    >>> import torch, weightshare as ws
    >>> model = torch.nn.Linear(5, 1)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[0.0, 5.0, 1.0, 5.0, 6.5]]))
    >>> ws.tie(model, distinct=2)
    tensor  weights  before  distinct   bits   error
    weight        5       4         2  0.971  0.1465
    >>> model.weight.data
    tensor([[0.5000, 5.5000, 0.5000, 5.5000, 5.5000]])
    """
    k = _values(bits, distinct)
    checks.choice("method", method, METHODS)
    if method == "prox":
        if keep_zeros:
            raise ValueError('keep_zeros=True is for method="kmeans"; the prox moves all weights alike')
        rewind = 1.0 if rho is None else inputs.number("rho", rho, least=0.0)
        if rewind > 1.0:
            raise ValueError(f"rho must be in [0, 1], got {rho}")
        each = partial(_prox_, k=k, rho=rewind)
    else:
        if rho is not None:
            raise ValueError('rho is for method="prox"; k-means takes the means anyway')
        each = partial(cluster_, k=k, keep_zeros=keep_zeros)
    return Table([_tie(group, per, each) for group in selected(model, select, per)])


def _values(bits: int | None, distinct: int | None) -> int:
    if (bits is None) == (distinct is None):
        raise ValueError(f"give bits or distinct, one of them, got bits={bits!r} and distinct={distinct!r}")
    if distinct is not None:
        return inputs.whole("distinct", distinct, least=1)
    if inputs.whole("bits", bits, least=0) > _MOST_BITS:
        raise ValueError(f"bits must be at most {_MOST_BITS}, got {bits}; more is hardly tied")
    return 1 << int(bits or 0)


def _tie(group: list[Named], per: Per, each: Callable[[Tensor], None]) -> dict[str, Any]:
    """Tie one tensor, or the tensors of a group as one vector; returns the row of the report."""
    tensors = [p.tensor.detach() for p in group]
    before = [t.clone() for t in tensors]

    def change(vector: Tensor, dim: int | None) -> None:
        for row in [vector] if dim is None else vector.unbind(1 - dim):
            each(row)

    change_(tensors, per, change)
    found = summary(tensors)
    first, *rest = (p.name for p in group)
    return {
        "tensor": first if not rest else f"{first} + {rest[0] if len(rest) == 1 else f'{len(rest)} more'}",
        "weights": found.weights,
        "before": summary(before).distinct,
        "distinct": found.distinct,
        "bits": found.entropy,
        "error": _relative(before, tensors),
    }


def _relative(before: list[Tensor], after: list[Tensor]) -> float:
    """Root of the sum of the squared changes over that of the squares."""
    size = sum(_square(t) for t in before)
    return math.sqrt(sum(_square(a - b) for a, b in zip(after, before)) / size) if size else 0.0


def _square(t: Tensor) -> float:
    return float(t.to(torch.float64).square().sum())


def _prox_(w: Tensor, k: int, rho: float) -> None:
    """The prox of ``alpha R`` for the least alpha (to a part in 10^4) that leaves at most ``k`` clusters.

    Their number never grows with alpha: what has collided stays together (the paper's monotonic inclusion).
    At alpha = max - min all is one cluster: the mean of the first i weights runs towards the mean of the
    others at the speed alpha d / (d - 1), and has less than max - min to go.
    """
    if w.numel() <= k or _clusters(w, 0.0) <= k:
        return
    high = float(w.double().max() - w.double().min())
    low = high / 4
    while _clusters(w, low) <= k:
        high, low = low, low / 4
    for _ in range(_ROUNDS):
        if high / low < _PRECISION:
            break
        alpha = math.sqrt(low * high)
        found = _clusters(w, alpha)
        low, high = (alpha, high) if found > k else (low, alpha)
        if found == k:
            break
    prox_(w, high, rho=rho)


def _clusters(w: Tensor, alpha: float) -> int:
    return int(prox(w, alpha, rho=1.0, return_clusters=True)[1].count)
