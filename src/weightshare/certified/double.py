"""float64 vectors: sorted, pooled with double-double sums."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import small
from weightshare.certified.problem import Problem
from weightshare.certified.result import ProxResult
from weightshare.kernels.threads import run


def solve(
    w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem, *, route: str, table: bool, ids: bool
) -> ProxResult:
    """Prox of one float64 vector."""
    w, problem, power = _safe_range(w, problem)
    result = small.solve_double(w, out, problem, table=table, ids=ids)
    if power:
        np.ldexp(out, -power, out=out)
        if result.clusters is not None:
            for part in (result.clusters.sums, result.clusters.means, result.clusters.values):
                np.ldexp(part, -power, out=part)
    return result


def solve_rows(w: NDArray[np.float64], out: NDArray[np.float64], problem: Problem) -> int:
    """Every row of a float64 matrix on its own; returns the number of zeroed weights."""
    zeros = [0] * w.shape[0]
    w, problem, power = _safe_range(w, problem)

    def row(r: int) -> None:
        zeros[r] = small.solve_double(w[r], out[r], problem, table=False, ids=False).zeros

    run([partial(row, r) for r in range(w.shape[0])], problem.threads)
    if power:
        np.ldexp(out, -power, out=out)
    return sum(zeros)


def _safe_range(w: NDArray[np.float64], problem: Problem) -> tuple[NDArray[np.float64], Problem, int]:
    """Refuse nan and inf; scale by a power of two if sums could overflow or products of tiny weights vanish.

    A c beyond twice the largest weight merges everything, as does twice the largest weight.
    """
    low, high = float(w.min()), float(w.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("w must be finite: it contains nan or inf")
    most = max(-low, high)
    problem = replace(problem, c=min(problem.c, 2.0 * most if most < 1e307 else most))
    exponent = math.frexp(most)[1] if most > 0.0 else 0
    if -400 < exponent < 600:
        return w, problem, 0
    power = -exponent
    scaled = np.ldexp(w, power)
    return (
        scaled,
        replace(problem, c=math.ldexp(problem.c, power), beta=math.ldexp(problem.beta, power)),
        power,
    )
