"""Attach weight sharing to an optimizer: the prox after every step, through the optimizer's own hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightshare.training import certificate
from weightshare.training.names import Model
from weightshare.training.report import Table, total
from weightshare.training.rules import Rule, resolve, shared_by_default
from weightshare.training.unit import Unit

StepSize = float | Callable[[dict[str, Any]], float]


class WeightSharing:
    """After every ``optimizer.step()`` take the proximal step of ``alpha R + beta l1`` (Algorithm 2).

    Together with SGD this is proximal gradient descent, ``w <- prox(w - lr grad)``. The training loop stays
    as it is; ties are exact after every step.

    Args:
        model: the model whose names the rules use; or pairs of a name and a tensor, for parameters that
            stand in no module (float32 master weights).
        optimizer: any ``torch.optim.Optimizer`` that holds the parameters. Attach one ``WeightSharing`` to
            each optimizer.
        rules: a :class:`Rule` or several. Left out, the weights of every Linear and Conv that the optimizer
            steps, each tensor a vector, with ``settings``.
        step: the step size of the proximal step where it is not the ``lr`` of the parameter's group: a
            number, or a function of the param group.
        certify_every: measure the distance from stationarity at every so many steps (see
            :meth:`certificate`) and show it in the report; 0: never.
        **settings: arguments of the one :class:`Rule` that is used when no rules are given.

    A step that ``GradScaler`` skips moves nothing. Parameters that are frozen or have no gradient when the
    optimizer steps are left alone. A deep copy or a pickle of a ``WeightSharing`` holds copies of its model
    and optimizer and is attached to these; a copy of the optimizer by itself is not shared.

    >>> import torch
    >>> from weightshare.training import WeightSharing
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(8, 4, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sharing = WeightSharing(model, optimizer, alpha=0.1)
    >>> for _ in range(50):
    ...     optimizer.zero_grad()
    ...     (model(torch.ones(2, 8)) - 1).square().mean().backward()
    ...     optimizer.step()
    >>> [(row["tensor"], row["weights"], row["distinct"]) for row in sharing.report()]
    [('weight', 32, 1), ('total', 32, 1)]
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        rules: Rule | Sequence[Rule] | None = None,
        *,
        step: StepSize | None = None,
        certify_every: int = 0,
        **settings: Any,
    ) -> None:
        self.optimizer = _bare(optimizer)
        self.model: Model = model if isinstance(model, nn.Module) else list(model)
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        if rules is None:
            rules = [Rule(shared_by_default(self.model, held), **settings)]
        elif settings:
            raise ValueError(f"give rules or their arguments, not both; got rules and {', '.join(settings)}")
        self.rules = [rules] if isinstance(rules, Rule) else _check_rules(rules)
        chosen = resolve(self.rules, self.model, held)
        self.units = [unit for rule, named in zip(self.rules, chosen) for unit in Unit.of(rule, named)]
        self.step_size = step
        self.certify_every = certify_every
        self.steps = 0
        self._paused = 0
        self._handles: list[Any] = []
        self._used: list[tuple[weakref.ref[Tensor], int]] = []
        self._refuse_second()
        for unit in self.units:
            self._size(unit, self._groups())
        self._attach()

    # Around the optimizer's step.

    def _attach(self) -> None:
        # A compiled step leaves its graph for the hooks; what they do depends on data.
        before, after = map(torch.compiler.disable, (self._before_step, self._after_step))
        after.sharing = self
        self._handles = [
            self.optimizer.register_step_pre_hook(before),
            self.optimizer.register_step_post_hook(after),
        ]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._paused:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._prepare()
            return None

        def prepared() -> Any:
            loss = closure()
            self._prepare()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": prepared}
        return (args[0], prepared, *args[2:]), kwargs

    @torch.no_grad()
    def _prepare(self) -> None:
        """With the gradients of this step at hand, and the weights still where they belong to."""
        if self.certify_every and self.steps % self.certify_every == 0 and not _skipped(self.optimizer):
            for row in self._measure_residuals():
                self._unit(row["tensor"]).residual = row["residual"]
        for unit in self.units:
            unit.before_(self.steps, _grad_scale(self.optimizer))

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._paused or _skipped(optimizer):
            return
        groups = self._groups()
        sizes = [self._size(unit, groups) for unit in self.units]
        for unit, size in zip(self.units, sizes):
            unit.after_(self.steps, size)
        self.steps += 1
        self._used = [(weakref.ref(g), g._version) for g in self._grads()]

    def _grads(self) -> list[Tensor]:
        return [t.grad for unit in self.units for t in unit.stepped() if t.grad is not None]

    def _groups(self) -> dict[int, dict[str, Any]]:
        # Looked up afresh: load_state_dict replaces the groups, schedulers may replace their lr.
        return {id(p): group for group in self.optimizer.param_groups for p in group["params"]}

    def _size(self, unit: Unit, groups: dict[int, dict[str, Any]]) -> float:
        """The unit's step size, from the param group that holds it."""
        sizes: dict[float, str] = {}
        for p in unit.members:
            moved = p.moved()
            if moved is not None or id(p.tensor) not in groups:
                raise RuntimeError(
                    f"the model's parameter {moved or p.name!r} is no longer the tensor that was attached "
                    f"(as after load_state_dict(assign=True), or pruning); build the optimizer and "
                    f"WeightSharing after that"
                )
            sizes.setdefault(_step_size(self.step_size, groups[id(p.tensor)], p.name), p.name)
        if len(sizes) > 1:
            shown = ", ".join(f"{name}: {size:g}" for size, name in sizes.items())
            raise ValueError(
                f'per="group" needs one learning rate for its tensors, got {shown}; use one rule for each'
            )
        return next(iter(sizes))

    # What a user calls.

    def remove(self) -> None:
        """Detach from the optimizer. The weights stay as they are."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def attached(self) -> bool:
        """Whether the optimizer's steps are followed."""
        return bool(self._handles)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block the optimizer's steps are plain ones, and schedules stand still."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def report(self) -> Table:
        """What is shared now: a row for each unit with its counts, its coefficients and its controller."""
        rows = [unit.row() for unit in self.units]
        return Table([*rows, total(rows)])

    @torch.no_grad()
    def certificate(self) -> Table:
        """Measure how far the weights are from a stationary point of loss + alpha R + beta l1.

        For every unit the residual of the proximal gradient step, ``|w - prox(w - lr g)| / lr`` (``norm``)
        and its largest entry (``residual``), with the gradients ``g`` that are there: call it after
        ``backward()`` and before ``step()``. Zero exactly at the points where that step stands still. A
        weight decay counts as part of the loss. Methods that act through the gradient are left out.
        """
        grads = self._grads()
        if not grads or any(
            ref() is g and g._version == version for g in grads for ref, version in self._used
        ):
            raise RuntimeError(
                "the gradients are missing, or older than the weights; call certificate() between "
                "backward() and step(), or attach with certify_every=1 and read the report"
            )
        return Table(self._measure_residuals())

    def _measure_residuals(self) -> list[dict[str, Any]]:
        groups = self._groups()
        return certificate.residuals(
            self.units,
            [self._size(u, groups) for u in self.units],
            groups,
            _grad_scale(self.optimizer),
            self.steps,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers that, with those of model and optimizer, continue a run exactly."""
        controllers = {u.name: u.control.state_dict() for u in self.units if u.control is not None}
        return {"steps": self.steps, "controllers": controllers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; before or after the optimizer's own, as you like."""
        mine = {u.name: u.control for u in self.units if u.control is not None}
        if not isinstance(state, dict) or set(state) != {"steps", "controllers"}:
            raise ValueError(f"state must come from WeightSharing.state_dict(), got {state!r:.200}")
        if set(state["controllers"]) != set(mine):
            raise ValueError(
                f"the state has controllers for {sorted(state['controllers'])}, but the rules have them for "
                f"{sorted(mine)}; attach with the rules of the run that was saved"
            )
        for name, control in mine.items():
            control.load_state_dict(state["controllers"][name])
        self.steps = int(state["steps"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": self.attached, "_used": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.__dict__.pop("_handles"):
            self._attach()
        else:
            self._handles = []

    def __repr__(self) -> str:
        what = f"attached to {type(self.optimizer).__name__}" if self.attached else "not attached"
        lines = [f"WeightSharing({what}, {self.steps} steps)"]
        return "\n".join([*lines, *(f"  {rule!r}: {self._names(rule)}" for rule in self.rules)])

    def _names(self, rule: Rule) -> str:
        return ", ".join(u.name for u in self.units if u.rule is rule)

    def _unit(self, name: str) -> Unit:
        return next(u for u in self.units if u.name == name)

    def _refuse_second(self) -> None:
        mine = {id(p.tensor) for unit in self.units for p in unit.members}
        for other in attached_to(self.optimizer):
            for unit in other.units:
                for p in unit.members:
                    if id(p.tensor) in mine:
                        raise ValueError(
                            f"{p.name!r} is shared already by a WeightSharing on this optimizer; "
                            f"call its remove() first"
                        )


def attached_to(optimizer: Optimizer) -> list[WeightSharing]:
    """Every WeightSharing that follows this optimizer's steps."""
    hooks = _bare(optimizer)._optimizer_step_post_hooks.values()
    return [hook.sharing for hook in hooks if hasattr(hook, "sharing")]


def _bare(optimizer: Any) -> Optimizer:
    """The optimizer whose hooks fire, where Accelerate or Lightning have wrapped it."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return _bare(inner)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def _check_rules(rules: Sequence[Rule]) -> list[Rule]:
    rules = list(rules)
    wrong = [rule for rule in rules if not isinstance(rule, Rule)]
    if wrong or not rules:
        raise TypeError(f"rules must be one or more Rule objects, got {wrong[0] if wrong else rules!r}")
    return rules


def _step_size(given: StepSize | None, group: dict[str, Any], name: str) -> float:
    size = group.get("lr") if given is None else given(group) if callable(given) else given
    if size is None:
        raise ValueError(
            f"the param group of {name!r} has no learning rate ('lr'); give WeightSharing(..., step=...), "
            f"a number or a function of the param group"
        )
    return float(size.detach() if isinstance(size, Tensor) else size)


def _skipped(optimizer: Optimizer) -> bool:
    """Whether GradScaler has told a fused optimizer, which it calls anyway, to do nothing.

    (Optimizers that are not fused are not called at all then, and no hook fires.)
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _grad_scale(optimizer: Optimizer) -> float:
    """What a fused optimizer will divide its gradients by."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)
