"""Isotonic regression (Eq. 6) by the same machinery."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from weightshare import checks, collisions, ops, solve
from weightshare.clusters import Clusters
from weightshare.rows import Rows


@overload
def isotonic_regression(
    y: Tensor, weights: Tensor | None = ..., increasing: bool = ..., *, algorithm: str = ...,
    return_clusters: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def isotonic_regression(
    y: Tensor, weights: Tensor | None = ..., increasing: bool = ..., *, algorithm: str = ...,
    return_clusters: Literal[True],
) -> tuple[Tensor, Clusters]: ...  # fmt: skip
@overload
def isotonic_regression(
    y: Tensor, weights: Tensor | None = ..., increasing: bool = ..., *, algorithm: str = ...,
    return_clusters: bool = ...,
) -> Tensor | tuple[Tensor, Clusters]: ...  # fmt: skip
def isotonic_regression(
    y: Tensor,
    weights: Tensor | None = None,
    increasing: bool = True,
    *,
    algorithm: str = "auto",
    return_clusters: bool = False,
) -> Tensor | tuple[Tensor, Clusters]:
    """Minimise ``sum_i weights_i (y_i - x_i)^2`` over non-decreasing ``x`` (Eq. 6), exactly.

    Along the last dimension; all leading dimensions are a batch. The result has the dtype of ``y``.

    Args:
        y: float64, float32, float16 or bfloat16.
        weights: positive, broadcastable to ``y``; all one if left out. Those of one vector may differ by a
            factor of 4e180 at most.
        increasing: ``False`` asks for a non-increasing ``x``.
        algorithm: a name from :func:`weightshare.algorithms`.
        return_clusters: also return the blocks. Their positions count along ``y`` from left to right
            (from right to left if decreasing).

    Differentiable in ``y`` and ``weights``.

    >>> import torch, weightshare as ws
    >>> ws.isotonic_regression(torch.tensor([1.0, 3.0, 2.0, 4.0]))
    tensor([1.0000, 2.5000, 2.5000, 4.0000])
    """
    y = checks.float_tensor("y", y)
    checks.choice("algorithm", algorithm, collisions.TABLE)
    if not isinstance(increasing, (bool, np.bool_)):
        raise TypeError(f"increasing must be True or False, got {increasing!r}")
    rows = Rows.of(y, -1 if y.ndim > 1 else None)
    weight_rows = _weight_rows(weights, y)
    if not checks.opaque(y):
        checks.finite("y", y.detach())
    if weights is not None and not checks.opaque(weights):
        ops.positive("weights", weights.detach())
    values = rows.values
    if return_clusters and (checks.opaque(y) or (weights is not None and checks.opaque(weights))):
        raise ValueError(
            "return_clusters=True needs concrete numbers: call it outside of torch.compile and vmap, and not "
            "on meta tensors"
        )
    if not increasing:
        values = values.flip(-1)
        weight_rows = None if weight_rows is None else weight_rows.flip(-1)
    if values.numel() == 0:
        out, ids = values.clone(), torch.zeros_like(values, dtype=torch.int64)
    else:
        out, ids = _solve(values, weight_rows, algorithm)
    if not increasing:
        out = out.flip(-1)
    result = rows.restore(out)
    if not return_clusters:
        return result
    clusters = Clusters.from_ids(ids, out if increasing else out.flip(-1), rows)
    return result, clusters if increasing else clusters.flipped_members()


def _weight_rows(weights: Tensor | None, y: Tensor) -> Tensor | None:
    if weights is None:
        return None
    checks.float_tensor("weights", weights)
    if weights.is_meta and not y.is_meta:
        raise ValueError("weights are a meta tensor, which has no values; give a tensor with values")
    shape = (y.shape[:-1].numel() if y.ndim else 1, y.shape[-1] if y.ndim else 1)
    beside = weights.to(y.device)
    try:
        return beside.expand(y.shape).reshape(shape)
    except RuntimeError:
        raise ValueError(
            f"weights must broadcast to y, got shape {tuple(weights.shape)} for y of shape {tuple(y.shape)}"
        ) from None


def _solve(y: Tensor, weights: Tensor | None, algorithm: str) -> tuple[Tensor, Tensor]:
    given = [y] if weights is None else [y, weights]
    checks.no_forward_mode(*given)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if needs_grad or any(checks.opaque(t) for t in given):
        if weights is None:
            weights = torch.ones((), dtype=torch.float64, device=y.device).expand(y.shape)
        return ops.differentiable_isotonic_rows(y, weights, algorithm)
    solution = solve.isotonic_rows(y, weights, algorithm)
    return solution.out, solution.ids
