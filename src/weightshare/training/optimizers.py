"""What there is to know about the optimizers that sharing follows: step sizes, skipped steps, wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from weightshare.training import inputs

StepSize = float | Callable[[dict[str, Any]], float]


def bare(optimizer: Any) -> Optimizer:
    """The optimizer whose hooks fire, where Accelerate or Lightning have wrapped it."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return bare(inner)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def check_step(step: Any) -> StepSize | None:
    """Accept None (the group's ``lr``), a step size, or a function of the param group."""
    if step is None or callable(step):
        return step  # type: ignore[no-any-return]
    return inputs.number("step", step, least=0.0)


def step_size(given: StepSize | None, group: dict[str, Any], name: str) -> float:
    """The step size for the parameter ``name`` of a param group: its ``lr`` unless another is given."""
    if callable(given):
        return inputs.number(f"what step returns for the group of {name!r}", given(group), least=0.0)
    size = group.get("lr") if given is None else given
    if size is None:
        raise ValueError(
            f"the param group of {name!r} has no learning rate ('lr'); give WeightSharing(..., step=...), "
            f"a number or a function of the param group"
        )
    return inputs.number(f"the learning rate of {name!r}", size, least=0.0)


def skipped(optimizer: Optimizer) -> bool:
    """Whether GradScaler has told a fused optimizer, which it calls anyway, to do nothing.

    (Optimizers that are not fused are not called at all then, and no hook fires.)
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def grad_scale(optimizer: Optimizer) -> float:
    """What a fused optimizer will divide its gradients by."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)
