"""One vector, or the rows of a matrix: check, choose the route, solve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.certified import double, half, machine, small
from weightshare.certified.plan import Groups, encode_values
from weightshare.certified.problem import Clock, Problem
from weightshare.certified.result import ClusterTable, Info, ProxResult
from weightshare.kernels.cpu import rows

ROUTES = ("auto", "certified", "partition", "small", "lut", "elementwise")
SMALL = 1 << 15  # below this a plain sort is fastest
SMALL_HALF = 1 << 13
LARGEST_C = 2.0**200  # more than any gap between float32 weights: all of them merge
Hint = ClusterTable | tuple[NDArray[Any], NDArray[Any]] | None


def prox_array(
    w: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    alpha: float,
    beta: float = 0.0,
    scale: float = 1.0,
    threads: int = 1,
    hint: Hint = None,
    route: str = "auto",
    clusters: bool = False,
    ids: bool = False,
    format: str | None = None,
) -> ProxResult:
    """Prox of alpha R + beta l1 with displacements times ``scale`` of one vector (Algorithm 2).

    ``w`` is a contiguous vector of float32, float64, or uint16 bit patterns with ``format`` "bf16" or "fp16".
    ``out`` may be ``w``. ``hint`` is the cluster table of an earlier call, or (centres, counts); it may
    change the time
    taken, never the result. ``route`` forces a route, for tests and measurements.

    >>> prox_array(np.array([3.0, 1.0, 2.9]), alpha=0.2).out.round(6)
    array([2.85, 1.2 , 2.85])
    """
    out = np.empty_like(w) if out is None else out
    _check(w, out, route, format)
    d = w.size
    problem = _problem(w, alpha, beta, scale, threads)
    table = clusters or ids
    if d == 0:
        return ProxResult(out, 0, Info("small", clusters=0), _empty_table() if table else None)
    if format is not None:
        return _prox_half(w, out, problem, format, route, hint, table, ids)
    if route == "elementwise" or (route == "auto" and problem.c == 0.0 and not table):
        return _elementwise(w, out, problem)
    if w.dtype == np.float64:
        return double.solve(w, out, problem, route=route, table=table, ids=ids)
    if route == "small" or (route == "auto" and d <= SMALL):
        return small.solve_single(w, out, problem, table=table, ids=ids)
    return machine.solve(
        w.view(np.uint32),
        out,
        problem,
        hint=_groups(hint, d),
        certify=route != "partition",
        table=table,
        ids=ids,
    )


def prox_rows(
    w: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    alpha: float,
    beta: float = 0.0,
    scale: float = 1.0,
    threads: int = 1,
    format: str | None = None,
) -> ProxResult:
    """``prox_array`` of every row of a contiguous matrix, rows in parallel.

    >>> prox_rows(np.array([[3.0, 1.0], [0.0, 8.0]]), alpha=0.5).out
    array([[2.5, 1.5],
           [0.5, 7.5]])
    """
    out = np.empty_like(w) if out is None else out
    _check(w, out, "auto", format)
    count, d = w.shape
    info = Info("rows", clusters=0)
    if count == 0 or d == 0:
        return ProxResult(out, 0, info)
    problem = _problem(w, alpha, beta, scale, threads)
    if row_by_row(count, d, problem.threads):
        _refuse_nonfinite(w, format)
        results = [
            prox_array(w[r], out[r], alpha=alpha, beta=beta, scale=scale, threads=threads, format=format)
            for r in range(count)
        ]
        return ProxResult(out, sum(r.zeros for r in results), Info.of_rows([r.info for r in results]))
    info.unresolved = 1.0
    clock = Clock(info)
    if w.dtype == np.float64:
        found = double.solve_rows(w, out, problem)
        clock.lap("sort and pool")
        return _of_rows(out, found, info)
    single = w if format is None else half.widen(w, format)
    _refuse_nonfinite(single, None)
    target = out if format is None else single
    found = small.solve_rows_single(single, target, problem)
    if format is not None:
        out[...] = half.narrow(target, format)
    clock.lap("sort and pool")
    return _of_rows(out, found, info)


def _of_rows(out: NDArray[Any], found: NDArray[np.int64], info: Info) -> ProxResult:
    """The result of rows of which the zeros and the clusters were counted."""
    zeros, info.clusters = (int(part) for part in found.sum(axis=0))
    return ProxResult(out, zeros, info)


def prox_rows_with_clusters(
    w: NDArray[Any],
    out: NDArray[Any],
    *,
    alpha: float,
    beta: float = 0.0,
    scale: float = 1.0,
    threads: int = 1,
    format: str | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int8], Info]:
    """``prox_rows`` into ``out``: the cluster and the gate (sign of x + v; 2 where zeroed) of every weight.

    >>> w = np.array([[3.0, 1.0, 2.9]])
    >>> prox_rows_with_clusters(w, np.empty_like(w), alpha=0.2)[0]
    array([[1, 0, 1]])
    """
    _check(w, out, "auto", format)
    info = Info("rows", unresolved=1.0)
    clock = Clock(info)
    problem = _problem(w, alpha, beta, scale, threads)
    wide, power = w if format is None else half.widen(w, format), 0
    if w.dtype == np.float64:
        wide, problem, power = double.safe_range(w, problem)
    else:
        _refuse_nonfinite(wide, None)
    values, ids, gate = small.solve_rows_with_clusters(wide, problem)
    if power:
        np.ldexp(values, -power, out=values)
    out[...] = values if format is None else half.narrow(values.astype(np.float32), format)
    info.clusters = int((ids.max(axis=1, initial=-1) + 1).sum())
    clock.lap("sort and pool")
    return ids, gate, info


def row_by_row(count: int, d: int, threads: int) -> bool:
    """Whether rows are so long and few that each is better solved as a long vector."""
    return (d > SMALL and count < 4 * threads) or d > 16 * SMALL


def _check(w: NDArray[Any], out: NDArray[Any], route: str, form: str | None) -> None:
    """Refuse what the kernels cannot read, naming the argument."""
    if route not in ROUTES:
        raise ValueError(f"route must be one of {ROUTES}, got {route!r}")
    wanted = (np.uint16,) if form is not None else (np.float32, np.float64)
    if w.dtype not in wanted or (form is not None and form not in half.FORMATS):
        raise TypeError(
            f"w must be float32, float64, or uint16 with format in {half.FORMATS}, got {w.dtype}, {form!r}"
        )
    if not (w.flags.c_contiguous and out.flags.c_contiguous) or out.shape != w.shape or out.dtype != w.dtype:
        raise ValueError("w and out must be contiguous and of the same shape and dtype")
    if route == "lut" and form is None:
        raise ValueError("route 'lut' is for half precision; give uint16 bit patterns and a format")


def _problem(w: NDArray[Any], alpha: float, beta: float, scale: float, threads: int) -> Problem:
    """The scalars of vectors along the last axis."""
    d = w.shape[-1]
    c = alpha / (d - 1) if d > 1 else 0.0
    c = c if w.dtype == np.float64 else min(c, LARGEST_C)
    return Problem(d, c, beta, scale, max(1, int(threads)))


def _prox_half(
    w: NDArray[np.uint16],
    out: NDArray[np.uint16],
    problem: Problem,
    form: str,
    route: str,
    hint: Hint,
    table: bool,
    ids: bool,
) -> ProxResult:
    """Half precision: LUT if long, else through float32, which holds every half exactly."""
    if route == "lut" or (route == "auto" and problem.d > SMALL_HALF):
        return half.solve(w, out, problem, form, table=table, ids=ids)
    single = half.widen(w, form)
    if route in ("certified", "partition"):
        certify = route == "certified"
        groups = _groups(hint, problem.d)
        result = machine.solve(
            single.view(np.uint32), single, problem, hint=groups, certify=certify, table=table, ids=ids
        )
    elif route == "elementwise":
        result = _elementwise(single, single, problem)
    else:
        result = small.solve_single(single, single, problem, table=table, ids=ids)
    out[...] = half.narrow(single, form)
    if result.clusters is not None:
        rounded = half.narrow(result.clusters.values.astype(np.float32), form)
        result.clusters.values = half.widen(rounded, form).astype(np.float64)
    result.out = out
    return result


def _elementwise(w: NDArray[Any], out: NDArray[Any], problem: Problem) -> ProxResult:
    """alpha = 0: nothing ties, nothing is sorted."""
    _refuse_nonfinite(w, None)
    zeros = rows.elementwise(w, problem.beta, problem.scale, out)
    return ProxResult(out, zeros, Info("elementwise"))


def _refuse_nonfinite(w: NDArray[Any], form: str | None) -> None:
    """NaN and infinity have no place among sorted weights."""
    values = w if form is None else half.widen(w, form)
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise ValueError("w must be finite: it contains nan or inf")


def _groups(hint: Hint, d: int) -> Groups | None:
    """A hint as guessed clusters: the largest ones only, those that may get buckets of their own."""
    if hint is None:
        return None
    if isinstance(hint, ClusterTable):
        centres, sizes = hint.values, np.diff(np.append(hint.starts, d))
    else:
        centres, sizes = hint
    counts = np.asarray(sizes, np.float64)
    large = np.flatnonzero(counts > max(32, d >> 14))
    large = large[np.argsort(-counts[large], kind="stable")[:4096]]
    centres = np.asarray(centres, np.float64)[large]
    keep = np.abs(centres) < 3e38  # false for nan
    keys = encode_values(centres[keep])
    return Groups(keys, keys, np.minimum(counts[large][keep], d))


def _empty_table() -> ClusterTable:
    """No weights, no clusters."""
    nothing = np.empty(0)
    return ClusterTable(np.empty(0, np.int64), nothing, nothing, nothing, np.empty(0, np.int64))
