"""What there is to know about the optimizers that sharing follows: closures, step sizes, skipped steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from weightshare.training import inputs

StepSize = float | Callable[[dict[str, Any]], float]

_HOOKS = "torch.optim.optimizer"  # whose wrapper around step calls the hooks


def bare(optimizer: Any) -> Optimizer:
    """The optimizer whose hooks fire, where Accelerate or Lightning have wrapped it."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return bare(inner)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def with_gradients(args: Any, kwargs: Any, prepare: Callable[[], None]) -> tuple[Any, Any] | None:
    """For a step's pre-hook: call ``prepare`` once the gradients of the step are there.

    Without a closure they are. A closure makes them, perhaps several times in one step; the hook returns
    arguments with a closure that calls ``prepare`` after it.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        prepare()
        return None

    def prepared() -> Any:
        loss = closure()
        prepare()
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": prepared}
    return (args[0], prepared, *args[2:]), kwargs


def nested(optimizer: Optimizer) -> bool:
    """For a step's hook: whether that step was called by another step of the same optimizer.

    A subclass whose ``step`` calls ``super().step()`` runs all hooks twice; what belongs around the step
    belongs around the outer one. (To count calls as they begin and end would fail for good after one that
    raised: then the hook at the end is not called.)
    """
    steps, frame = 0, sys._getframe(1)
    while frame is not None:
        hooks = frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == _HOOKS
        steps += hooks and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1


def check_step(step: Any) -> StepSize | None:
    """Accept None (the group's ``lr``), a step size, or a function of the param group."""
    if step is None or callable(step):
        return step  # type: ignore[no-any-return]
    return inputs.number("step", step, least=0.0)


def step_size(given: StepSize | None, group: dict[str, Any], name: str) -> float:
    """The step size for the parameter ``name`` of a param group: its ``lr`` unless another is given.

    Where the ``lr`` is 0 it is 0 in any case: the optimizer moves nothing.
    """
    rate = group.get("lr")
    if rate is not None:
        rate = inputs.number(f"the learning rate of {name!r}", rate, least=0.0)
        if given is None or rate == 0.0:
            return rate
    if given is None:
        raise ValueError(
            f"the param group of {name!r} has no learning rate ('lr'); give WeightSharing(..., step=...), "
            f"a number or a function of the param group"
        )
    if callable(given):
        return inputs.number(f"what step returns for the group of {name!r}", given(group), least=0.0)
    return given


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
