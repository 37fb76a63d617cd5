"""Who solves what: the compiled solvers on the CPU, plain PyTorch elsewhere and for named algorithms."""

from __future__ import annotations

import torch
from torch import Tensor

from weightshare import generic, native
from weightshare.certified import Info
from weightshare.solution import ZEROED, Hint, Solution, Table

__all__ = ["ZEROED", "Hint", "Solution", "Table", "isotonic_rows", "prox_rows", "prox_values"]


def prox_rows(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str, hint: Hint = None
) -> Solution:
    """Algorithm 2 for every row of ``w`` (rows, d), with coefficients (rows,) in float64.

    ``scale`` multiplies the displacement in line 11: 1 - rho, and the step size where it is decoupled.
    """
    if compiled(w, algorithm):
        return native.prox_rows(w.contiguous(), alpha, beta, scale, hint)
    return generic.prox_rows(w, alpha, beta, scale, algorithm)


def prox_values(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, out: Tensor, algorithm: str, hint: Hint = None
) -> Info:
    """The results of :func:`prox_rows` alone, into ``out``, which may be ``w``."""
    if not compiled(w, algorithm):
        solution = generic.prox_rows(w, alpha, beta, scale, algorithm)
        out.copy_(solution.out)
        return solution.info
    source = w.contiguous()
    if out.is_contiguous():
        return native.prox_values(source, alpha, beta, scale, out, hint)
    dense = torch.empty_like(source)
    info = native.prox_values(source, alpha, beta, scale, dense, hint)
    out.copy_(dense)
    return info


def isotonic_rows(y: Tensor, weights: Tensor | None, algorithm: str) -> Solution:
    """Isotonic regression (Eq. 6) of every row of ``y`` with positive ``weights``; the gate is unused."""
    if compiled(y, algorithm) and (weights is None or native.in_range(y, weights)):
        return native.isotonic_rows(y.contiguous(), weights)
    if weights is None:
        weights = torch.ones((), dtype=torch.float64, device=y.device).expand(y.shape)
    return generic.isotonic_rows(y, weights, algorithm)


def compiled(values: Tensor, algorithm: str) -> bool:
    """Whether the compiled solvers are the ones to ask."""
    return algorithm == "auto" and values.device.type == "cpu"
