"""Checks of the numbers that training is given; what tensors and coefficients need is in ``checks``."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def number(name: str, value: Any, *, least: float = -math.inf) -> float:
    """Accept a finite number that is not below ``least``.

    >>> number("tolerance", 0.1, least=0.0)
    0.1
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.detach().item()
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    found = float(value)
    if not (math.isfinite(found) and found >= least):
        bound = "" if least == -math.inf else f" and >= {least:g}"
        raise ValueError(f"{name} must be finite{bound}, got {found}")
    return found


def dense_gradients(tensors: Mapping[str, Tensor], what: str) -> None:
    """Refuse gradients that hold some rows only, named by their parameters, where ``what`` needs all.

    >>> dense_gradients({"fc1.weight": Tensor()}, "freeze_clusters")
    """
    for name, tensor in tensors.items():
        if tensor.grad is not None and tensor.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {name!r} is sparse, and {what} needs it whole; make its embedding with "
                f"sparse=False"
            )


def whole(name: str, value: Any, *, least: int) -> int:
    """Accept a whole number that is not below ``least``.

    >>> whole("log_every", 50, least=1)
    50
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    found = operator.index(value)
    if found < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {found}")
    return found
