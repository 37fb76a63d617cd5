"""Attach weight sharing to an optimizer: the prox after every step, through the optimizer's own hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightshare import checks
from weightshare.training import certificate, inputs, names, together
from weightshare.training.controller import check_state
from weightshare.training.names import Model
from weightshare.training.optimizers import (
    StepSize,
    bare,
    check_step,
    grad_scale,
    nested,
    skipped,
    step_size,
    with_gradients,
)
from weightshare.training.report import Table, total
from weightshare.training.rules import Rule, resolve, shared_by_default
from weightshare.training.unit import Unit

Log = Callable[[dict[str, float], int], Any]


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
        log: a function of the report's numbers by name and the number of steps, ``wandb.log`` for example,
            to be called after every ``log_every`` steps. (Where parameters are DTensors a report is an
            exchange between ranks: give ``log`` on all of them.)
        log_every: see ``log``.
        **settings: arguments of the one :class:`Rule` that is used when no rules are given.

    A step that ``GradScaler`` skips moves nothing. Parameters that are frozen or have no gradient when the
    optimizer steps are left alone. A deep copy or a pickle of a ``WeightSharing`` holds copies of its model
    and optimizer and is attached to these; it does not log. A copy of the optimizer by itself is not shared.

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
        log: Log | None = None,
        log_every: int = 100,
        **settings: Any,
    ) -> None:
        self.optimizer = bare(optimizer)
        names.check_model(model)
        self.model: Model = model if isinstance(model, nn.Module) else list(model)
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        if rules is None:
            rules = [_rule_from(shared_by_default(self.model, held), settings)]
        elif settings:
            raise ValueError(f"give rules or their arguments, not both; got rules and {', '.join(settings)}")
        self.rules = _check_rules(rules)
        chosen = resolve(self.rules, self.model, held)
        self.units = [unit for rule, named in zip(self.rules, chosen) for unit in Unit.of(rule, named)]
        self.step_size = check_step(step)
        self.certify_every = inputs.whole("certify_every", certify_every, least=0)
        self.log, self.log_every = _check_log(log), inputs.whole("log_every", log_every, least=1)
        self.steps = 0
        self._paused = 0
        self._handles: list[Any] = []
        self._used: list[tuple[weakref.ref[Tensor], int]] = []
        self._refuse_second()
        self._sizes()  # raises where there is no step size
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
        return None if self._paused or nested(optimizer) else with_gradients(args, kwargs, self._prepare)

    @torch.no_grad()
    def _prepare(self) -> None:
        """With the gradients of this step at hand, and the weights still where they belong to."""
        sizes = self._sizes()
        if not any(sizes):
            return
        if self.certify_every and self.steps % self.certify_every == 0 and not skipped(self.optimizer):
            for row in self._measure_residuals():
                self._unit(row["tensor"]).residual = row["residual"]
        for unit, size in zip(self.units, sizes):
            if size:
                unit.before_(self.steps, grad_scale(self.optimizer))

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._paused or nested(optimizer) or skipped(optimizer):
            return
        sizes = self._sizes()
        if not any(sizes):
            return  # nothing has moved: so torch.distributed.checkpoint makes an optimizer fill its state
        together.after_([(unit, size) for unit, size in zip(self.units, sizes) if size], self.steps)
        self.steps += 1
        self._used = [(weakref.ref(g), g._version) for g in self._grads()]
        if self.log is not None and self.steps % self.log_every == 0:
            self.log(self.report().scalars("sharing/"), self.steps)

    def _grads(self) -> list[Tensor]:
        return [t.grad for unit in self.units for t in unit.stepped() if t.grad is not None]

    def _groups(self) -> dict[int, dict[str, Any]]:
        # Looked up afresh: load_state_dict replaces the groups, schedulers may replace their lr.
        return {id(p): group for group in self.optimizer.param_groups for p in group["params"]}

    def _sizes(self) -> list[float]:
        groups = self._groups()
        return [self._size(unit, groups) for unit in self.units]

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
            sizes.setdefault(step_size(self.step_size, groups[id(p.tensor)], p.name), p.name)
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
        return certificate.residuals(
            self.units, self._sizes(), self._groups(), grad_scale(self.optimizer), self.steps
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers that, with those of model and optimizer, continue a run exactly."""
        controllers = {u.name: u.control.state_dict() for u in self.units if u.control is not None}
        return {"steps": self.steps, "controllers": controllers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; before or after the optimizer's own, as you like."""
        mine = {u.name: u.control for u in self.units if u.control is not None}
        known = isinstance(state, dict) and set(state) == {"steps", "controllers"}
        if not known or not isinstance(state["controllers"], dict):
            raise ValueError(f"state must come from WeightSharing.state_dict(), got {state!r:.200}")
        steps = inputs.whole("steps", state["steps"], least=0)
        if set(state["controllers"]) != set(mine):
            raise ValueError(
                f"the state has controllers for {sorted(state['controllers'])}, but the rules have them for "
                f"{sorted(mine)}; attach with the rules of the run that was saved"
            )
        for name in mine:
            check_state(name, state["controllers"][name])
        for name, control in mine.items():
            control.load_state_dict(state["controllers"][name])
        self.steps = steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": self.attached, "_used": [], "log": None}

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
    hooks = bare(optimizer)._optimizer_step_post_hooks.values()
    return [hook.sharing for hook in hooks if hasattr(hook, "sharing")]


def _check_rules(rules: Any) -> list[Rule]:
    given = list(rules) if isinstance(rules, (list, tuple)) else [rules]
    wrong = [rule for rule in given if not isinstance(rule, Rule)]
    if wrong or not given:
        raise TypeError(
            f"rules must be one or more Rule objects, got {wrong[0] if wrong else rules!r}; "
            f'write, for example, Rule("fc1.weight", alpha=1e-3)'
        )
    return given


def _rule_from(select: list[str], settings: dict[str, Any]) -> Rule:
    known = [name for name in Rule.__dataclass_fields__ if name != "select"]
    for name in settings:
        checks.choice("argument", name, known)
    return Rule(select, **settings)


def _check_log(log: Any) -> Log | None:
    if log is not None and not callable(log):
        raise TypeError(f"log must be callable with the numbers by name and the step, got {log!r}")
    return log  # type: ignore[no-any-return]
