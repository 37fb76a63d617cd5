"""The proximal map of ``alpha R + beta l1`` with rewinding: Algorithm 2 of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from weightshare import checks, collisions, ops, solve
from weightshare.certified import Info
from weightshare.clusters import Clusters
from weightshare.rows import Rows

Number = float | Tensor
HintLike = Clusters | tuple[Tensor, Tensor] | None


@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., hint: HintLike = ...,
    return_clusters: Literal[False] = ..., return_info: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., hint: HintLike = ...,
    return_clusters: Literal[True], return_info: Literal[False] = ...,
) -> tuple[Tensor, Clusters]: ...  # fmt: skip
@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., hint: HintLike = ...,
    return_clusters: Literal[False] = ..., return_info: Literal[True],
) -> tuple[Tensor, Info]: ...  # fmt: skip
@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., hint: HintLike = ...,
    return_clusters: Literal[True], return_info: Literal[True],
) -> tuple[Tensor, Clusters, Info]: ...  # fmt: skip
@overload
def prox(
    w: Tensor, alpha: Number, beta: Number = ..., rho: Number = ..., *, step: Number = ...,
    coupling: str = ..., dim: int | None = ..., algorithm: str = ..., hint: HintLike = ...,
    return_clusters: bool = ..., return_info: bool = ...,
) -> Tensor | tuple[Tensor, Clusters] | tuple[Tensor, Info] | tuple[Tensor, Clusters, Info]: ...  # fmt: skip
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
    hint: HintLike = None,
    return_clusters: bool = False,
    return_info: bool = False,
) -> Any:
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
        algorithm: a name from :func:`weightshare.algorithms`; all give the same result (but for rounding
            in the last place of float64).
        hint: the :class:`Clusters` of an earlier, similar call, or a pair (values, sizes). It can save
            time on a long vector, and never changes the result.
        return_clusters: also return the :class:`Clusters` of the result. All weights that ``beta``
            set to zero are one cluster.
        return_info: also return, last, how the call was answered: route, share of weights that had to
            be sorted, seconds of each phase.

    Differentiable in ``w`` and in tensor-valued coefficients (block averages, O(d)), also twice, in
    reverse mode. Works under ``torch.compile`` and ``torch.func.vmap``/``grad`` (``return_clusters`` and
    ``return_info`` do not: they depend on the data).
    Forward-mode derivatives (``jvp``) raise.

    >>> import torch, weightshare as ws
    >>> ws.prox(torch.tensor([0.0, 5.0, 0.1, 5.2, 9.0]), alpha=0.4)
    tensor([0.3500, 5.0000, 0.3500, 5.0000, 8.6000])
    """
    call = Call.of(w, alpha, beta, rho, step, coupling, dim, algorithm, hint)
    wanted = {"return_clusters": return_clusters, "return_info": return_info}
    if any(wanted.values()) and call.opaque:
        name = next(name for name, value in wanted.items() if value)
        raise ValueError(
            f"{name}=True needs concrete numbers: call prox outside of torch.compile and vmap, and not on "
            "meta tensors"
        )
    answer: list[Any]
    if return_clusters or call.traced or call.rows.values.numel() == 0:
        solution = call.solve()
        answer, info = [call.rows.restore(solution.out)], solution.info
        if return_clusters:
            answer.append(_clusters(solution, call.rows))
    else:
        out, info = call.values()
        answer = [call.rows.restore(out)]
    if return_info:
        answer.append(info)
    return answer[0] if len(answer) == 1 else tuple(answer)


def prox_(
    w: Tensor,
    alpha: Number,
    beta: Number = 0.0,
    rho: Number = 0.0,
    *,
    step: Number = 1.0,
    coupling: str = "scaled",
    dim: int | None = None,
    algorithm: str = "auto",
    hint: HintLike = None,
) -> Tensor:
    """:func:`prox` in place, for optimizer steps: overwrite ``w`` with its prox and return it.

    Not differentiable: call it under ``torch.no_grad()`` if ``w`` requires a gradient. Where it raises,
    ``w`` is as it was.

    >>> import torch, weightshare as ws
    >>> w = torch.tensor([0.0, 5.0, 0.1, 5.2, 9.0])
    >>> ws.prox_(w, alpha=0.4) is w
    True
    >>> w
    tensor([0.3500, 5.0000, 0.3500, 5.0000, 8.6000])
    """
    call = Call.of(w, alpha, beta, rho, step, coupling, dim, algorithm, hint)
    if call.traced:
        raise RuntimeError(
            "prox_ is not differentiable and cannot be traced: call it under torch.no_grad(), outside of "
            "torch.compile and vmap, or use prox"
        )
    rows = call.rows
    if rows.values.numel() == 0:
        return w
    if rows.values.data_ptr() == w.data_ptr() and rows.values.is_contiguous():
        call.write(rows.values)
        torch.autograd.graph.increment_version(w)
    else:
        w.copy_(rows.restore(call.values()[0]))
    return w


@dataclass(frozen=True)
class Call:
    """Checked arguments: the rows to solve, their coefficients, and how."""

    rows: Rows
    coefficients: tuple[Tensor, Tensor, Tensor]
    algorithm: str
    hint: solve.Hint
    traced: bool
    opaque: bool

    @classmethod
    def of(
        cls,
        w: Any,
        alpha: Any,
        beta: Any,
        rho: Any,
        step: Any,
        coupling: str,
        dim: Any,
        algorithm: str,
        hint: Any,
    ) -> Call:
        rows = Rows.of(checks.float_tensor("w", w), dim)
        checks.choice("coupling", coupling, checks.COUPLINGS)
        checks.choice("algorithm", algorithm, collisions.TABLE)
        alpha, beta = checks.coefficient("alpha", alpha), checks.coefficient("beta", beta)
        rho, step = checks.coefficient("rho", rho, upper=1.0), checks.coefficient("step", step)
        if not w.is_meta and any(isinstance(c, Tensor) and c.is_meta for c in (alpha, beta, rho, step)):
            raise ValueError("a coefficient is a meta tensor, which has no value; give a number")
        # A factor out of range would not show in the products that the operator sees.
        rho, step = checks.hidden(rho, upper=1.0), checks.hidden(step)
        scale = 1.0 - rho
        if coupling == "scaled":
            alpha, beta = step * alpha, step * beta
        else:
            scale = scale * step
            for name, value in (("alpha", alpha), ("beta", beta)):
                _per_row(rows, name, scale * value)  # a displacement has to be in range, too
        coefficients = (
            _per_row(rows, "alpha", alpha), _per_row(rows, "beta", beta), _per_row(rows, "scale", scale)
        )  # fmt: skip
        # What was made here of plain numbers needs no look: for short vectors it would be half of the call.
        made = zip(coefficients, (alpha, beta, scale))
        tensors = [rows.values, *(tensor for tensor, given in made if isinstance(given, Tensor))]
        checks.no_forward_mode(*tensors)
        differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        opaque = any(checks.opaque(t) for t in tensors)
        return cls(rows, coefficients, algorithm, _hint(hint), differentiated or opaque, opaque)

    def _operator(self) -> solve.Solution:
        """All rows, by way of the operator that has derivatives and can be traced."""
        outputs = ops.differentiable_prox_rows(self.rows.values, *self.coefficients, self.algorithm)
        return solve.Solution(*outputs, Info("operator"))

    def solve(self) -> solve.Solution:
        """All rows, with clusters."""
        values = self.rows.values
        if values.numel() == 0:
            return _empty(values)
        if self.opaque:
            return self._operator()
        with self._located():
            if self.traced:
                return self._operator()
            return solve.prox_rows(self.rows.values, *self.coefficients, self.algorithm, self.hint)

    def values(self) -> tuple[Tensor, Info]:
        """All rows, results only."""
        out = self.rows.values.new_empty(self.rows.values.shape)
        return out, self.write(out)

    def write(self, out: Tensor) -> Info:
        """All rows, results only, into ``out``, which may be the rows themselves."""
        with self._located():
            return solve.prox_values(self.rows.values, *self.coefficients, out, self.algorithm, self.hint)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Solvers meet NaN and inf in passing; where one does, say where they are in the caller's tensor."""
        try:
            yield
        except ValueError:
            checks.finite("w", self.rows.restore(self.rows.values.detach()))
            raise


def _per_row(rows: Rows, name: str, value: Number) -> Tensor:
    """A coefficient in float64 beside the weights, once for each row."""
    device = rows.values.device
    if not isinstance(value, Tensor):
        if not torch.compiler.is_compiling():
            if math.isinf(value):
                raise ValueError(f"step * {name} overflows; lower step or {name}")
            return torch.full((1,), value, dtype=torch.float64, device=device).expand(rows.values.shape[0])
        # A product, since torch.compile can trace that for a number that changes from call to call.
        value = torch.ones((), dtype=torch.float64, device=device) * value
    if not checks.opaque(value) and bool(value.isinf()):
        raise ValueError(f"step * {name} overflows; lower step or {name}")
    return value.to(device).expand(rows.values.shape[0])


def _hint(hint: Any) -> solve.Hint:
    """A hint as values and sizes; anything else is refused."""
    if hint is None:
        return None
    if isinstance(hint, Clusters):
        return hint.values, hint.sizes
    if isinstance(hint, tuple) and len(hint) == 2 and all(_readable(part) for part in hint):
        if hint[0].shape != hint[1].shape or hint[0].ndim != 1:
            raise ValueError(
                "hint must be two vectors of one length, got shapes "
                f"{tuple(hint[0].shape)} and {tuple(hint[1].shape)}"
            )
        return hint[0], hint[1]
    raise TypeError(f"hint must be Clusters or a pair of tensors (values, sizes), got {type(hint).__name__}")


def _readable(part: Any) -> bool:
    return isinstance(part, Tensor) and not part.is_complex() and not checks.opaque(part)


def _clusters(solution: solve.Solution, rows: Rows) -> Clusters:
    if solution.table is not None:
        table = solution.table
        return Clusters.from_table(
            table.starts, table.values, solution.ids, rows, merged=table.gate == solve.ZEROED
        )
    return Clusters.from_ids(solution.ids, solution.out, rows, merged=solution.gate == solve.ZEROED)


def _empty(values: Tensor) -> solve.Solution:
    ids, gate = torch.zeros_like(values, dtype=torch.int64), torch.zeros_like(values, dtype=torch.int8)
    return solve.Solution(values.clone(), ids, gate, Info("empty", clusters=0))
