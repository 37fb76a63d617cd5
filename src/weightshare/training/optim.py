"""Proximal gradient descent for full-batch problems, plain and accelerated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from weightshare import checks
from weightshare.distributed import of_each
from weightshare.training import inputs
from weightshare.training.certificate import largest
from weightshare.training.vectors import check_per, check_shape, prox_each_

RESTARTS = ("gradient", "none")

_OWN = ("accelerated", "restart", "residual", "restarts", "_t", "_momentum")


class ProximalGradient(Optimizer):
    """Minimise ``f(w) + alpha R(w) + beta |w|_1`` for a smooth loss f whose gradient is exact.

    Plain (ISTA): ``w <- prox(w - lr grad f(w))``, the paper's proximal gradient descent (appendix
    "Optimization"). Accelerated (FISTA; Beck and Teboulle 2009, their Eqs. 4.1 to 4.3): the same step from
    a point extrapolated along the last move, with the momentum restarted when it points uphill (the
    gradient scheme of O'Donoghue and Candes 2015).

    Converges for convex f with ``lr <= 1/L``, L being the Lipschitz constant of its gradient: the objective
    like 1/t, accelerated like 1/t^2. For minibatches attach :class:`weightshare.WeightSharing` to an
    ordinary optimizer instead.

    Args:
        params: tensors or param groups; ``lr``, ``alpha``, ``beta``, ``rho`` and ``per`` may differ by group.
        lr: step size.
        alpha: coefficient of R.
        beta: coefficient of l1.
        rho: rewinding; only 0 minimises the objective above.
        per: what is one vector: ``"tensor"``, ``"row"``, ``"column"``, an int, or ``"group"`` (the tensors of
            the param group together).
        accelerated: needs ``step(closure)``, for the gradient is taken at the extrapolated point.
        restart: ``"gradient"`` or ``"none"``.

    >>> import torch
    >>> w = torch.tensor([0.0, 5.0, 0.1, 5.2, 9.0], requires_grad=True)
    >>> target = w.detach().clone()
    >>> optimizer = ProximalGradient([w], lr=0.5, alpha=0.4)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (w - target).square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(60): _ = optimizer.step(closure)
    >>> w.data
    tensor([0.3500, 5.0000, 0.3500, 5.0000, 8.6000])
    >>> optimizer.residual < 1e-5
    True
    """

    residual: float
    """Largest entry of ``|y - prox(y - lr grad f(y))| / lr`` in the last step: 0 exactly at a minimum."""
    restarts: int
    """How often the momentum was restarted."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        alpha: float = 0.0,
        beta: float = 0.0,
        rho: float = 0.0,
        *,
        per: str | int = "tensor",
        accelerated: bool = True,
        restart: str = "gradient",
    ) -> None:
        checks.choice("restart", restart, RESTARTS)
        super().__init__(params, {"lr": lr, "alpha": alpha, "beta": beta, "rho": rho, "per": per})
        self.accelerated, self.restart = accelerated, restart
        self.residual, self.restarts = float("inf"), 0
        self._t, self._momentum = 1.0, 0.0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Check a group's coefficients, and add it."""
        settings = {**self.defaults, **param_group}
        if not inputs.number("lr", settings["lr"]) > 0.0:
            raise ValueError(f"lr must be > 0, got {settings['lr']}; at most 1/L is safe")
        checks.coefficient("alpha", settings["alpha"])
        checks.coefficient("beta", settings["beta"])
        checks.coefficient("rho", settings["rho"], upper=1.0)
        check_per(settings["per"])
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            check_shape("params", p, settings["per"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure`` clears the gradients, computes the loss, calls backward and returns it.

        The parameters hold the iterate before and after; the closure sees the extrapolated point.
        """
        if closure is None and self.accelerated:
            raise ValueError("an accelerated step needs a closure; give one, or set accelerated=False")
        before = {p: p.detach().clone() for p in self._all()}
        loss = None
        if closure is not None:
            loss = self._evaluate(closure, before)
        points = {p: p.detach().clone() for p in self._all() if p.grad is not None}
        for group in self.param_groups:
            self._step_group_(group)
        self._measure(points)
        self._update_momentum(before, points)
        return loss

    def _evaluate(self, closure: Callable[[], Any], before: dict[Tensor, Tensor]) -> Any:
        """The closure at the point where the gradient is wanted; only what has a gradient stays there."""
        if self.accelerated:
            self._extrapolate_()
        done = False
        try:
            with torch.enable_grad():
                loss = closure()
            done = True
        finally:
            for p, iterate in before.items():
                if not done or p.grad is None:
                    p.copy_(iterate)
        return loss

    def _all(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _extrapolate_(self) -> None:
        """Move to y = x + (t_k - 1) / t_(k+1) * (x - last x) (FISTA, Eq. 4.3)."""
        for p in self._all():
            last = self.state[p].get("last")
            if last is not None:
                p.add_(p - last, alpha=self._momentum)

    def _step_group_(self, group: dict[str, Any]) -> None:
        tensors = [p for p in group["params"] if p.grad is not None]
        lr = float(group["lr"])
        for p in tensors:
            p.sub_(p.grad, alpha=lr)
        alpha, beta, rho = (float(group[name]) for name in ("alpha", "beta", "rho"))
        if tensors:
            prox_each_([p.detach() for p in tensors], group["per"], alpha=alpha, beta=beta, rho=rho, step=lr)

    def _measure(self, points: dict[Tensor, Tensor]) -> None:
        lrs = {p: float(group["lr"]) for group in self.param_groups for p in group["params"]}
        gaps = (gap / lrs[p] for p, y in points.items() for gap in of_each(y - p, largest))
        self.residual = max(gaps, default=0.0)

    def _update_momentum(self, before: dict[Tensor, Tensor], points: dict[Tensor, Tensor]) -> None:
        """Remember the iterate; forget the momentum if the step went against it."""
        work = ((y - p) * (p - before[p]) for p, y in points.items())
        uphill = math.fsum(part for w in work for part in of_each(w, lambda shard: float(shard.sum())))
        if self.accelerated and self.restart == "gradient" and uphill > 0.0:
            self._t = 1.0
            self.restarts += 1
        t = (1.0 + (1.0 + 4.0 * self._t * self._t) ** 0.5) / 2.0  # FISTA, Eq. 4.2
        self._momentum, self._t = (self._t - 1.0) / t, t
        for p in points:
            self.state[p]["last"] = before[p]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with the momentum's."""
        return {**super().state_dict(), "momentum": [self._t, self._momentum, self.restarts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        if "momentum" not in state_dict:
            raise ValueError(
                f"state_dict must come from ProximalGradient.state_dict(), got one with {sorted(state_dict)}"
            )
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "momentum"})
        self._t, self._momentum, self.restarts = state_dict["momentum"]

    def __getstate__(self) -> dict[str, Any]:
        # Optimizer's own keeps nothing of a subclass, so that copies and pickles would lack these.
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _OWN}}
