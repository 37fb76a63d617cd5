"""Checks of what a caller hands in: each error names the argument, its value and the remedy."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COUPLINGS = ("scaled", "decoupled")
NO_FORWARD_MODE = "forward-mode derivatives are not defined here; use reverse mode (grad, vjp, jacrev)"


def float_tensor(name: str, value: Any) -> Tensor:
    """Accept a real floating-point tensor of a supported dtype; raise ``TypeError`` for anything else."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; "
            f"wrap it with torch.as_tensor({name}, dtype=torch.float32)"
        )
    if value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one; use {name}.unbind(), one by one")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}; call {name}.to_dense()")
    if value.dtype not in FLOATS:
        raise TypeError(
            f"{name} must have dtype float64, float32, float16 or bfloat16, got {value.dtype}; "
            f"convert it, for example {name}.to(torch.float32)"
        )
    return value


def finite(name: str, value: Tensor) -> None:
    """Raise ``ValueError`` that counts and locates the NaN and infinite entries, if there are any."""
    good = torch.isfinite(value)
    if bool(good.all()):
        return
    raise ValueError(
        f"{name} must be finite, got {first_where(~good, value)} "
        f"({int((~good).sum())} of {value.numel()} entries are NaN or infinite); remove them first"
    )


def first_where(bad: Tensor, value: Tensor) -> str:
    """The first entry of ``value`` that is marked in ``bad``, and where it is."""
    first = tuple(bad.nonzero()[0].tolist())
    return f"{value[first].item()} at index {first[0] if len(first) == 1 else first}"


def coefficient(name: str, value: Any, *, upper: float = math.inf) -> float | Tensor:
    """Accept a finite number in [0, upper], or a tensor that holds one.

    Tensors are returned in float64: a product of two coefficients can leave the range of their own dtype.
    """
    if isinstance(value, Tensor):
        real = value.layout == torch.strided and not value.dtype.is_complex and value.dtype != torch.bool
        if value.numel() != 1 or not real:
            raise ValueError(
                f"{name} must be a number or a tensor with one real element, "
                f"got a {value.dtype if value.layout == torch.strided else value.layout} tensor "
                f"of shape {tuple(value.shape)}"
            )
        if not opaque(value):
            _in_range(name, float(value.detach()), upper)
        elsewhere = value.device.type == "mps"  # has no float64
        return (value.cpu() if elsewhere else value).reshape(()).to(torch.float64)
    if torch.compiler.is_compiling() and isinstance(value, float):
        return value  # comparing it would compile anew for each number; the operator looks at it
    try:
        if isinstance(value, (str, bytes, bool, np.bool_)):  # float() would read them
            raise TypeError
        result = float(value)  # also NumPy scalars and the like
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})") from None
    _in_range(name, result, upper)
    return result


def number(name: str, value: Any, *, upper: float = math.inf) -> float:
    """Accept what :func:`coefficient` does where its value can be looked at; return that."""
    checked = coefficient(name, value, upper=upper)
    if not isinstance(checked, Tensor):
        return checked
    if opaque(checked):
        raise ValueError(f"{name} must be a concrete number here, not one that is traced or on meta")
    return float(checked.detach())


def hidden(value: float | Tensor, upper: float = math.inf) -> float | Tensor:
    """``value``, but NaN for the operator to refuse if it cannot be looked at now and is out of range."""
    if not isinstance(value, Tensor):
        if not torch.compiler.is_compiling():
            return value
        value = torch.ones((), dtype=torch.float64) * value
    elif not opaque(value):
        return value
    return torch.where((value >= 0) & (value <= upper), value, math.nan)


def _in_range(name: str, value: float, upper: float) -> None:
    if not (value >= 0.0 and value <= upper and value < math.inf):
        allowed = "finite and >= 0" if upper == math.inf else f"in [0, {upper:g}]"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def opaque(value: Tensor) -> bool:
    """Whether the numbers in ``value`` cannot be looked at now (tracing, vmap, meta tensors)."""
    return (
        torch.compiler.is_compiling()  # first: the rest cannot be traced
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or value.is_meta
        or transformed(value)
        or fake(value)
    )


def fake(value: Tensor) -> bool:
    """Whether ``value`` is a stand-in with a shape and no numbers, as tracers use them."""
    return isinstance(value, torch._subclasses.FakeTensor)


def has_tangent(value: Tensor) -> bool:
    """Whether ``value`` carries a forward-mode derivative."""
    return (
        not torch.compiler.is_compiling() and torch.autograd.forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]
    )


def no_forward_mode(*values: Tensor) -> None:
    """Raise where a tangent would be lost: the maps have reverse-mode derivatives only."""
    if any(has_tangent(value) for value in values):
        raise RuntimeError(NO_FORWARD_MODE)


def transformed(value: Tensor) -> bool:
    """Whether ``value`` is inside a torch.func transform (vmap, grad, ...)."""
    return not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(value)


def dimension(dim: Any, value: Tensor) -> int | None:
    """Normalise ``dim`` to a non-negative index (or ``None``: the whole tensor is one vector)."""
    if dim is None:
        return None
    index = integer("dim", dim, "an int or None")
    if value.ndim == 0 or not -value.ndim <= index < value.ndim:
        raise ValueError(f"dim is out of range: got {dim} for a tensor of shape {tuple(value.shape)}")
    return index % value.ndim


def integer(name: str, value: Any, wanted: str = "an int") -> int:
    """Accept an integer (also of another library), but not True and False."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be {wanted}, got {value!r}") from None


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Accept one of the known names; the message lists them and guesses what was meant."""
    known = list(known)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(map(repr, known))}{hint}")
