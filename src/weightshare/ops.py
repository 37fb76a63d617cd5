"""The two maps as PyTorch operators: shapes for tracing, derivatives, and a rule for vmap.

Both maps average over blocks, so their derivatives do too: O(d), and again differentiable. What the
derivatives need is the partition (``ids``) and, for the prox, which side of zero each weight is on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weightshare import checks, solve


@torch.library.custom_op("weightshare::prox_rows", mutates_args=())
def prox_rows(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of Algorithm 2; returns the result, the cluster of each weight, and its gate."""
    check_coefficients(alpha, beta, scale)
    if w.numel() == 0:  # an empty batch of torch.func.vmap
        return _prox_shapes(w, alpha, beta, scale, algorithm)
    try:
        solution = solve.prox_rows(w, alpha, beta, scale, algorithm)
    except ValueError:
        checks.finite("w", w)  # solvers meet NaN and inf in passing: say which, and where
        raise
    return solution.out, solution.ids, solution.gate


@torch.library.custom_op("weightshare::isotonic_rows", mutates_args=())
def isotonic_rows(y: Tensor, weights: Tensor, algorithm: str) -> tuple[Tensor, Tensor]:
    """Rows of isotonic regression; returns the result and the block of each entry."""
    checks.finite("y", y)
    positive("weights", weights)
    if y.numel() == 0:
        return _isotonic_shapes(y, weights, algorithm)
    solution = solve.isotonic_rows(y, weights, algorithm)
    return solution.out, solution.ids


def check_coefficients(alpha: Tensor, beta: Tensor, scale: Tensor) -> None:
    """Look at the numbers; under tracing this is the first place where they can be seen."""
    for name, value in (("step * alpha", alpha), ("step * beta", beta), ("1 - rho (times step)", scale)):
        bad = ~((value >= 0) & torch.isfinite(value))
        if bool(bad.any()):
            why = "; rho must be in [0, 1], and step finite and >= 0" if bool(value[bad][0].isnan()) else ""
            raise ValueError(f"{name} must be finite and >= 0, got {float(value[bad][0])}{why}")


def positive(name: str, value: Tensor) -> None:
    """Raise unless every entry is finite and greater than zero."""
    checks.finite(name, value)
    if bool((value <= 0).any()):
        raise ValueError(
            f"{name} must be positive, got {checks.first_where(value <= 0, value)}; drop entries of weight 0"
        )


def _prox_shapes(
    w: Tensor, alpha: Tensor, beta: Tensor, scale: Tensor, algorithm: str
) -> tuple[Tensor, Tensor, Tensor]:
    shape = w.shape
    return w.new_empty(shape), w.new_empty(shape, dtype=torch.int64), w.new_empty(shape, dtype=torch.int8)


def _isotonic_shapes(y: Tensor, weights: Tensor, algorithm: str) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty(y.shape, dtype=torch.int64)


prox_rows.register_fake(_prox_shapes)
isotonic_rows.register_fake(_isotonic_shapes)


def _sums(ids: Tensor, values: Tensor) -> Tensor:
    """Sum of ``values`` over each block, in float64, padded to one column for each entry."""
    zeros = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
    return zeros.scatter_add(1, ids, values.to(torch.float64))


def _prox_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    w, alpha, beta, scale, _ = inputs
    _, ids, gate = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(ids, gate)
    ctx.save_for_backward(ids, gate, alpha, beta, scale)
    ctx.dtype = w.dtype


def _blocks(ids: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What both derivatives of the prox need: kept (1) or zeroed (0) and sign for each weight; size and
    speed for each cluster. A cluster [i, j) has v = alpha * speed, speed = (d - i - j) / (d - 1)."""
    d = ids.shape[1]
    kept = (gate != solve.ZEROED).to(torch.float64)
    size = _sums(ids, torch.ones_like(ids))
    stop = size.cumsum(1)
    speed = (d - (stop - size) - stop) / max(d - 1, 1)
    return kept, gate * kept, size.clamp(min=1.0), speed


def _prox_backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None
    ids, gate, alpha, beta, scale = ctx.saved_tensors
    kept, sign, size, speed = _blocks(ids, gate)
    passed = grad.to(torch.float64) * kept
    total = _sums(ids, passed)
    grad_w = (total / size).gather(1, ids).to(ctx.dtype)
    along_alpha = (total * speed).sum(1)
    along_beta = -(passed * sign).sum(1)
    grad_scale = alpha * along_alpha + beta * along_beta
    return grad_w, scale * along_alpha, scale * along_beta, grad_scale, None


def _isotonic_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    y, weights, _ = inputs
    _, ids = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(ids)
    ctx.save_for_backward(y, weights, ids)


def _isotonic_backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    y, weights, ids = ctx.saved_tensors
    top = weights.detach().to(torch.float64).amax(1, keepdim=True)  # sums of proportions cannot overflow
    mass = weights.to(torch.float64) / top
    total = _sums(ids, mass).gather(1, ids)
    share = _sums(ids, grad).gather(1, ids) / total
    # The regression again, as a differentiable function of its inputs (for second derivatives).
    means = _sums(ids, y.to(torch.float64) * mass).gather(1, ids) / total
    residual = y.to(torch.float64) - means
    return (share * mass).to(y.dtype), (share * residual / top).to(weights.dtype), None


prox_rows.register_autograd(_prox_backward, setup_context=_prox_setup)
isotonic_rows.register_autograd(_isotonic_backward, setup_context=_isotonic_setup)


def _fold(size: int, value: Tensor, axis: int | None) -> Tensor:
    """Bring the mapped axis to the front (repeat what is not mapped) and fold it into the rows."""
    value = value.expand(size, *value.shape) if axis is None else value.movedim(axis, 0)
    return value.reshape(size * value.shape[1], *value.shape[2:])


def _unfold(size: int, outputs: tuple[Tensor, ...], value: Tensor, axis: int | None) -> tuple[Tensor, ...]:
    """The way back from :func:`_fold` for what came from ``value`` with its mapped ``axis``."""
    shape = [length for place, length in enumerate(value.shape) if place != axis]
    return tuple(t.view(size, *shape) for t in outputs)


def _refuse_jvp(ctx: Any, *tangents: Any) -> Any:
    raise RuntimeError(checks.NO_FORWARD_MODE)


def _prox_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    size = info.batch_size
    folded = [_fold(size, value, axis) for value, axis in zip(args[:4], in_dims)]
    outputs = differentiable_prox_rows(*folded, args[4])
    return _unfold(size, outputs, args[0], in_dims[0]), (0, 0, 0)


def _isotonic_vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    size = info.batch_size
    folded = [_fold(size, value, axis) for value, axis in zip(args[:2], in_dims)]
    outputs = differentiable_isotonic_rows(*folded, args[2])
    return _unfold(size, outputs, args[0], in_dims[0]), (0, 0)


class _Prox(torch.autograd.Function):
    """The same operator for torch.func, which does not take derivatives of custom operators."""

    forward = staticmethod(prox_rows)
    setup_context = staticmethod(_prox_setup)
    backward = staticmethod(_prox_backward)
    jvp = staticmethod(_refuse_jvp)
    vmap = staticmethod(_prox_vmap)


class _Isotonic(torch.autograd.Function):
    forward = staticmethod(isotonic_rows)
    setup_context = staticmethod(_isotonic_setup)
    backward = staticmethod(_isotonic_backward)
    jvp = staticmethod(_refuse_jvp)
    vmap = staticmethod(_isotonic_vmap)


def differentiable_prox_rows(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`prox_rows`, also inside torch.func transforms."""
    return (_Prox.apply if _in_transform(args) else prox_rows)(*args)  # type: ignore[no-untyped-call, no-any-return]


def differentiable_isotonic_rows(*args: Any) -> tuple[Tensor, Tensor]:
    """:func:`isotonic_rows`, also inside torch.func transforms."""
    return (_Isotonic.apply if _in_transform(args) else isotonic_rows)(*args)  # type: ignore[no-untyped-call, no-any-return]


def _in_transform(args: tuple[Any, ...]) -> bool:
    return any(checks.transformed(t) for t in args if isinstance(t, Tensor))
