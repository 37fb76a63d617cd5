"""One unit of a rule: a tensor, or the tensors of a group, with its coefficients and its controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weightshare.distributed import metered
from weightshare.training import inputs
from weightshare.training.controller import INTERVAL, Controller
from weightshare.training.methods import AfterStep, Prox, Values, upper
from weightshare.training.names import Named
from weightshare.training.report import describe
from weightshare.training.rules import Rule, units
from weightshare.training.schedules import value_at
from weightshare.training.vectors import directly


@dataclass
class Unit:
    """The members whose vectors a method works on, with what this run knows about them."""

    rule: Rule
    members: Sequence[Named]
    control: Controller | None = None
    values: Values = field(default_factory=dict)
    residual: float | None = None
    exchanged: int = 0
    planned: tuple[int, Values] | None = None

    @classmethod
    def of(cls, rule: Rule, chosen: Sequence[Named]) -> list[Unit]:
        """The units of a rule that has selected ``chosen``."""
        controllers = (None if rule.goal is None else Controller(rule.goal) for _ in chosen)
        return [cls(rule, members, control) for members, control in zip(units(rule, chosen), controllers)]

    @property
    def name(self) -> str:
        """The tensor's name; of a group, the first one's and how many follow."""
        first, *rest = (p.name for p in self.members)
        return first if not rest else f"{first} + {rest[0] if len(rest) == 1 else f'{len(rest)} more'}"

    def stepped(self) -> list[Tensor]:
        """The members that the optimizer moves in this step: not frozen, and with a gradient."""
        return [p.tensor for p in self.members if p.tensor.requires_grad and p.tensor.grad is not None]

    def stands_alone(self, step: int) -> bool:
        """Whether moving it is the prox of one tensor in compiled code: no code of users, no other rank."""
        planned = self.planned is not None and self.planned[0] == step
        one = len(self.members) == 1 and self.rule.per in ("tensor", "group")
        return planned and one and type(self.rule.what) is Prox and directly(self.members[0].tensor.detach())

    def values_at(self, step: int) -> dict[str, float]:
        """The coefficients at this step: schedules evaluated, the controller's factor included."""
        method, schedule = self.rule.what, self.rule.schedule
        factor = 1.0 if schedule is None else value_at("alpha and beta", schedule, step)
        found = {}
        for name, coefficient in method.coefficients().items():
            value = value_at(name, coefficient, step, upper=upper(name))
            if name in method.scaled_by_schedule():
                value *= factor
            if self.control is not None and name == self.control.goal.coefficient:
                value *= self.control.factor
            found[name] = value
        return found

    def before_(self, step: int, grad_scale: float) -> None:
        """Let the method add to the gradients; a schedule that fails does so before anything moves."""
        tensors = self.stepped()
        if tensors:
            values, method = self.values_at(step), self.rule.what
            self.planned = (step, values)
            if not isinstance(method, AfterStep):
                inputs.dense_gradients(
                    {p.name: p.tensor for p in self.members}, f"the method {method.name!r}"
                )
            method.before_(tensors, self.rule.per, values, grad_scale=grad_scale)

    def after_(self, step: int, size: float) -> None:
        """Let the method move the weights; then, when it is time, measure and adapt."""
        tensors = self.stepped()
        if not tensors:
            return
        known = self.planned is not None and self.planned[0] == step
        self.values = self.planned[1] if self.planned and known else self.values_at(step)
        self.planned = None
        try:
            with metered() as meter:
                self._move_and_measure_([t.detach() for t in tensors], step, size)
            self.exchanged = meter.bytes
        except ValueError as error:
            raise ValueError(
                f"{self.name}, after optimizer step {step} with {dict(self.values)}: {error}"
            ) from error

    def _move_and_measure_(self, tensors: list[Tensor], step: int, size: float) -> None:
        self.rule.what.after_(tensors, self.rule.per, self.values, step=size)
        if self.control is not None and (step + 1) % INTERVAL == 0:
            self.control.update(self.control.goal.measure(tensors))

    def row(self) -> dict[str, Any]:
        """The unit's row of the report."""
        tensors = [p.tensor for p in self.members]
        row = describe(self.name, tensors, self.rule.per)
        row.update(self.values)
        if self.residual is not None:
            row["residual"] = self.residual
        if self.exchanged:
            row["exchanged"] = self.exchanged  # bytes between ranks in the last step
        if self.control is not None:
            goal = self.control.goal
            row["target"] = f"{goal.quantity} {'>=' if goal.quantity == 'zeros' else '<='} {goal.target:g}"
            row["met"] = bool(self.control.goal.measure(tensors) <= goal.ceiling)
            row["moves"], row["turns"] = self.control.moves, self.control.changes
        return row

    def mapped(
        self, size: float, grad_scale: float, group: dict[str, Any], step: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs of the weights and of where a plain proximal gradient step would take them (new tensors)."""
        tensors = self.stepped()
        moved = []
        for t in tensors:
            assert t.grad is not None
            slope = t.grad.to(torch.float64) / grad_scale * (-1.0 if group.get("maximize") else 1.0)
            decay = float(group.get("weight_decay") or 0.0)
            moved.append(t.detach().to(torch.float64) * (1.0 - size * decay) - size * slope)
        self.rule.what.after_(moved, self.rule.per, self.values_at(step), step=size)
        return list(zip((t.detach() for t in tensors), moved))
