"""What a rule does to its vectors around an optimizer step, as one interface with room for baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from weightshare import checks
from weightshare.training.schedules import Coefficient
from weightshare.training.vectors import Per, prox_each_

Values = Mapping[str, float]

_UPPER = {"rho": 1.0, "zeros": 1.0}


def upper(name: str) -> float:
    """The largest value a coefficient of this name may have."""
    return _UPPER.get(name, float("inf"))


@runtime_checkable
class Method(Protocol):
    """A way to regularise the vectors of a rule.

    ``before_`` may add to the gradients just before the optimizer steps, ``after_`` may move the weights
    just after. Both get the numbers that the coefficients have at this step, and the step size.
    """

    name: ClassVar[str]

    def coefficients(self) -> dict[str, Coefficient]:
        """Numbers or schedules by name."""
        ...

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """The coefficients that a rule's ``schedule`` multiplies."""
        ...

    def before_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, grad_scale: float) -> None:
        """Add to the gradients, which the step will divide by ``grad_scale``."""
        ...

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Move the weights."""
        ...


class AfterStep:
    """Shared by the methods that leave the gradients alone."""

    def before_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, grad_scale: float) -> None:
        """Nothing: everything happens after the step."""


@dataclass(frozen=True)
class Prox(AfterStep):
    """The proximal step of ``alpha R + beta l1`` with rewinding ``rho``: Algorithm 2 after each step.

    ``coupling="scaled"`` is proximal gradient descent (the prox of ``lr * (alpha R + beta l1)``),
    ``"decoupled"`` the variant of the paper's appendix, see :func:`weightshare.prox`.
    """

    alpha: Coefficient = 0.0
    beta: Coefficient = 0.0
    rho: Coefficient = 0.0
    coupling: str = "scaled"
    name: ClassVar[str] = "prox"

    def __post_init__(self) -> None:
        checks.choice("coupling", self.coupling, checks.COUPLINGS)
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``alpha``, ``beta`` and ``rho``."""
        return {"alpha": self.alpha, "beta": self.beta, "rho": self.rho}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on the two strengths."""
        return ("alpha", "beta")

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Replace every vector by its prox."""
        alpha, beta, rho = values["alpha"], values["beta"], values["rho"]
        scaled = self.coupling == "scaled"
        if (alpha == 0 and beta == 0) or (scaled and step == 0):
            return  # the identity, and it would cost a sort
        prox_each_(tensors, per, alpha=alpha, beta=beta, rho=rho, step=step, coupling=self.coupling)


def check_coefficients(method: Method) -> None:
    """Raise for coefficients that are neither callable nor a number in range."""
    for name, value in method.coefficients().items():
        if not callable(value):
            checks.coefficient(name, value, upper=upper(name))
