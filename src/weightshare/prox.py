"""The proximal map of ``alpha R + beta l1`` with rewinding: Algorithm 2 of the paper."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from weightshare import checks, collisions, ops, solve
from weightshare.clusters import Clusters
from weightshare.rows import Rows

Number = float | Tensor


@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., return_clusters: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., return_clusters: Literal[True],
) -> tuple[Tensor, Clusters]: ...  # fmt: skip
def prox(
    w: Tensor,
    alpha: Number,
    beta: Number = 0.0,
    rho: Number = 0.0,
    *,
    step: Number = 1.0,
    coupling: str = "scaled",
    dim: int | None = None,
    algorithm: str = "auto",
    return_clusters: bool = False,
) -> Tensor | tuple[Tensor, Clusters]:
    """Minimise ``alpha R(u) + beta |u|_1 + 1/2 |u - w|^2`` over ``u`` (Algorithm 2), exactly.

    Weights that collide come out bitwise equal. Returns a new tensor of the dtype and shape of ``w``.

    Args:
        w: float64, float32, float16 or bfloat16, of any shape and strides.
        alpha: coefficient of R. A number or a tensor with one element; so are the next three.
        beta: coefficient of l1; clusters that would end closer to zero than ``beta`` become zero.
        rho: rewinding in [0, 1]: how much of each cluster's displacement is taken back. With
            ``rho=1`` clusters stay at their mean (and ``alpha=0`` is hard thresholding).
        step: the step size (learning rate) of the proximal gradient method.
        coupling: ``"scaled"``: the prox of ``step * (alpha R + beta l1)``. ``"decoupled"``: collisions
            and zeroing with ``alpha`` and ``beta`` as they are, the displacement times ``step`` (the
            paper's appendix, after Neyshabur 2020).
        dim: ``None``: the whole tensor is one vector. Otherwise every slice along ``dim`` is one.
        algorithm: a name from :func:`weightshare.algorithms`; all give the same result.
        return_clusters: also return the :class:`Clusters` of the result. All weights that ``beta``
            set to zero are one cluster.

    Differentiable in ``w`` and in tensor-valued coefficients (block averages, O(d)), also twice. Works
    under ``torch.compile`` and ``torch.func.vmap``/``grad`` (``return_clusters`` does not: the number of
    clusters depends on the data); forward-mode derivatives are not defined.

    >>> import torch, weightshare as ws
    >>> ws.prox(torch.tensor([0.0, 5.0, 0.1, 5.2, 9.0]), alpha=0.4)
    tensor([0.3500, 5.0000, 0.3500, 5.0000, 8.6000])
    """
    rows = Rows.of(checks.float_tensor("w", w), dim)
    checks.choice("coupling", coupling, checks.COUPLINGS)
    checks.choice("algorithm", algorithm, collisions.TABLE)
    alpha, beta = checks.coefficient("alpha", alpha), checks.coefficient("beta", beta)
    rho, step = checks.coefficient("rho", rho, upper=1.0), checks.coefficient("step", step)
    scale = 1.0 - rho
    if coupling == "scaled":
        alpha, beta = step * alpha, step * beta
    else:
        scale = scale * step
    if return_clusters and checks.opaque(w):
        raise ValueError(
            "return_clusters=True needs concrete numbers: call prox outside of torch.compile and vmap for it"
        )
    if rows.values.numel() == 0:
        out, ids, gate = _empty(rows)
    else:
        out, ids, gate = _solve(
            rows.values,
            _per_row(rows, "alpha", alpha),
            _per_row(rows, "beta", beta),
            _per_row(rows, "scale", scale),
            algorithm,
        )
    result = rows.restore(out)
    if not return_clusters:
        return result
    return result, Clusters.from_ids(ids, rows, merged=gate == solve.ZEROED)


def _per_row(rows: Rows, name: str, value: Number) -> Tensor:
    """A coefficient in float64 beside the weights, once for each row."""
    device = rows.values.device
    if isinstance(value, Tensor):
        value = value.to(device=device, dtype=torch.float64)
    else:
        if value == float("inf"):
            raise ValueError(f"step * {name} overflows; lower step or {name}")
        value = torch.full((), value, dtype=torch.float64, device=device)
    return value.expand(rows.values.shape[0])


def _solve(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Through the operator where something has to be traced or differentiated; directly elsewhere."""
    arguments = (w, alpha, beta, scale)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in arguments)
    if needs_grad or any(checks.opaque(t) for t in arguments):
        return ops.differentiable_prox_rows(*arguments, algorithm)
    if w.device.type == "mps":  # no float64 there
        out, ids, gate = _solve(w.cpu(), alpha.cpu(), beta.cpu(), scale.cpu(), algorithm)
        return out.to(w.device), ids.to(w.device), gate.to(w.device)
    checks.finite("w", w)
    solution = solve.prox_rows(*arguments, algorithm)
    return solution.out, solution.ids, solution.gate


def _empty(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    values = rows.values
    return (
        values.clone(),
        torch.zeros_like(values, dtype=torch.int64),
        torch.zeros_like(values, dtype=torch.int8),
    )
