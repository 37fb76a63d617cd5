"""From tensors to the compiled solvers and back: what ``algorithm="auto"`` runs on the CPU.

The solvers see the tensors' own memory (halves as bit patterns); nothing is copied on the way in, and
results can be written where the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weightshare import certified, checks
from weightshare.certified import ClusterTable, Info, ProxResult
from weightshare.solution import ZEROED, Hint, Solution, Table

LEAST_TOP = 1e-200  # times the lightest weight that is carried, and times 2^-53 for its last place
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def prox_values(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, out: Tensor, hint: Hint = None
) -> Info:
    """Algorithm 2 for every row of ``w`` (rows, d) into ``out`` (may be ``w``); both contiguous."""
    if w.shape[0] > 1:
        if all(_uniform(c) for c in (alpha, beta, scale)):
            source, form = _memory(w)
            result = certified.prox_rows(
                source, _memory(out)[0], **_scalars(alpha, beta, scale, 0), format=form
            )
            return result.info
        checks.finite("w", w)  # before the first of several rows is written
    return _account(list(_each_row(w, alpha, beta, scale, out, hint, clusters=False)))


def prox_rows(w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, hint: Hint = None) -> Solution:
    """The same with the cluster and the gate of each weight, from the solver's tables."""
    out, ids = torch.empty_like(w), w.new_empty(w.shape, dtype=torch.int64)
    gate = w.new_empty(w.shape, dtype=torch.int8)
    alike = all(_uniform(c) for c in (alpha, beta, scale))
    if w.shape[0] > 1 and alike and not certified.row_by_row(w.shape[0], w.shape[1], torch.get_num_threads()):
        source, form = _memory(w)
        numbers, sides, info = certified.prox_rows_with_clusters(
            source, _memory(out)[0], **_scalars(alpha, beta, scale, 0), format=form
        )
        return Solution(out, torch.from_numpy(numbers), torch.from_numpy(sides), info)
    results = list(_each_row(w, alpha, beta, scale, out, hint, clusters=True))
    table = None
    for r, result in enumerate(results):
        assert result.clusters is not None
        table = _table(result.clusters, w.shape[1], float(alpha[r]), float(beta[r]), w.dtype)
        ids[r] = torch.from_numpy(result.clusters.ids)
        gate[r] = table.gate[ids[r]]
    return Solution(out, ids, gate, _account(results), table if w.shape[0] == 1 else None)


def _account(results: list[ProxResult]) -> Info:
    """How the rows were answered."""
    infos = [result.info for result in results]
    return infos[0] if len(infos) == 1 else Info.of_rows(infos)


def _scalars(alpha: Tensor, beta: Tensor, scale: Tensor, row: int) -> dict[str, Any]:
    """The coefficients of one row, and the number of threads, as the solvers take them."""
    return {
        "alpha": float(alpha[row]), "beta": float(beta[row]), "scale": float(scale[row]),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def _table(clusters: ClusterTable, d: int, alpha: float, beta: float, dtype: torch.dtype) -> Table:
    starts, means = torch.from_numpy(clusters.starts), torch.from_numpy(clusters.means)
    stops = torch.cat([starts[1:], starts.new_tensor([d])])
    end = means + alpha / max(d - 1, 1) * (d - starts - stops)  # x + v
    gate = torch.where(end.abs() < beta, ZEROED, end.sign()).to(torch.int8)
    return Table(starts, torch.from_numpy(clusters.values).to(dtype), gate)


def _each_row(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, out: Tensor, hint: Hint, *, clusters: bool
) -> Iterator[ProxResult]:
    """Solve the rows one by one, on request with the clusters and the cluster of each weight."""
    guess = None
    if hint is not None and w.shape[0] == 1:
        centres, sizes = (part.detach().cpu().to(torch.float64) for part in hint)
        guess = (centres.numpy(), sizes.numpy())
    source, form = _memory(w)
    target, _ = _memory(out)
    for r in range(w.shape[0]):
        scalars = _scalars(alpha, beta, scale, r)
        yield certified.prox_array(
            source[r], target[r], **scalars, hint=guess, clusters=clusters, ids=clusters, format=form
        )


def isotonic_rows(y: Tensor, weights: Tensor | None) -> Solution:
    """Isotonic regression of every row; halves by way of float32, which holds them exactly."""
    wide = y if y.dtype in (torch.float32, torch.float64) else y.to(torch.float32)
    mass = None if weights is None else weights.detach().to(torch.float64).contiguous().numpy()
    threads = torch.get_num_threads()
    out = torch.empty_like(wide)
    source, target = _memory(wide)[0], _memory(out)[0]
    if y.shape[0] == 1:
        row = None if mass is None else mass[0]
        result = certified.isotonic_array(source[0], row, target[0], threads=threads)
    else:
        result = certified.isotonic_rows(source, mass, target, threads=threads)
    heads = torch.from_numpy(result.heads).view(y.shape)
    return Solution(out.to(y.dtype), heads.cumsum(1) - 1, y.new_empty(0, dtype=torch.int8), Info("tiles"))


def in_range(y: Tensor, weights: Tensor) -> bool:
    """Whether the compiled regression can carry these products without leaving the range of float64."""
    top = y.detach().abs().amax(1)
    small = bool(((top > 0) & (top < LEAST_TOP)).any())
    return not small and float(weights.max() / weights.min()) < certified.isotonic.SAFE


def _memory(values: Tensor) -> tuple[Any, str | None]:
    """A contiguous CPU tensor as an array over the same memory, and the format of its halves."""
    form = _FORMATS.get(values.dtype)
    values = values.detach()
    return (values if form is None else values.view(torch.uint16)).numpy(), form


def _uniform(coefficient: Tensor) -> bool:
    return coefficient.stride(0) == 0 or bool((coefficient == coefficient[0]).all())
