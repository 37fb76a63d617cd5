"""From a config to weightshare's own rules: one for each regularised layer, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from weightshare import Rule, baselines, prox_
from weightshare.experiments.config import Config
from weightshare.experiments.models import regularized
from weightshare.training.methods import Method, Prox, Values
from weightshare.training.schedules import Coefficient
from weightshare.training.vectors import Per, change_


@dataclass(frozen=True)
class ProxBy(Prox):
    """The prox by the algorithm of a name; the result is the same, the time is not."""

    algorithm: str = "auto"

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Replace every vector by its prox."""
        if values["alpha"] == 0 and values["beta"] == 0:
            return

        def change(vector: Tensor, dim: int | None) -> None:
            prox_(
                vector,
                values["alpha"],
                values["beta"],
                values["rho"],
                step=step,
                coupling=self.coupling,
                dim=dim,
                algorithm=self.algorithm,
            )

        change_(tensors, per, change)


@dataclass
class Clock:
    """Seconds spent in the methods that it was given to."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Timed:
    """A method, with the time that it takes added to a clock."""

    method: Method
    clock: Clock = field(compare=False)

    @property
    def name(self) -> str:
        """The method's own."""
        return self.method.name

    def coefficients(self) -> dict[str, Coefficient]:
        """The method's own."""
        return self.method.coefficients()

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """The method's own."""
        return self.method.scaled_by_schedule()

    def before_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, grad_scale: float) -> None:
        """What the method does."""
        start = time.perf_counter()
        self.method.before_(tensors, per, values, grad_scale=grad_scale)
        self.clock.seconds += time.perf_counter() - start

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """What the method does."""
        start = time.perf_counter()
        self.method.after_(tensors, per, values, step=step)
        self.clock.seconds += time.perf_counter() - start


def method(config: Config, layer: int) -> Method | None:
    """What the config does to the parameters of a layer; ``None``: nothing.

    >>> from weightshare.experiments.recipes import recipe
    >>> method(recipe("cifar10/beta-lasso", "paper"), 1)
    BetaLasso(lam=1e-05, threshold=50.0)
    """
    alpha, beta, rho, coupling = config.strength(layer), config.beta, config.rho, config.coupling
    if config.method == "prox" and config.algorithm == "auto":
        return Prox(alpha, beta, rho, coupling)
    if config.method == "prox":
        return ProxBy(alpha, beta, rho, coupling, algorithm=config.algorithm)
    if config.method == "l1":
        return baselines.L1(beta, rho, coupling)
    if config.method == "beta-lasso":
        return baselines.BetaLasso(beta, threshold=round(1.0 / (1.0 - rho), 9))
    if config.method == "subgradient":
        return baselines.Subgradient(alpha, beta)
    return None


def rules(config: Config, clock: Clock) -> list[Rule]:
    """The rules of a run; none for method ``"none"``."""
    found = []
    for layer, names in regularized(config).items():
        what = method(config, layer)
        if what is not None:
            found.append(Rule(names, method=Timed(what, clock)))  # type: ignore[arg-type] # name is a property
    return found
