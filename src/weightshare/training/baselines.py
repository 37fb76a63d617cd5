"""Other ways to regularise, on the interface of the prox: what the paper compares with, and pruning.

Give one to a rule, ``Rule(torch.nn.Linear, method=BetaLasso(1e-5))``; everything else (vectors,
schedules, targets, reports) is as with the prox. Clustering and pruning after training are
:func:`weightshare.training.after.kmeans_` and :func:`weightshare.training.after.prune_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from weightshare import checks
from weightshare.penalty import subgradient
from weightshare.training.methods import AfterStep, Prox, Values, check_coefficients
from weightshare.training.schedules import Coefficient
from weightshare.training.vectors import Per, change_


@dataclass(frozen=True)
class L1(AfterStep):
    """The prox of ``beta l1`` with rewinding (Eq. "rewinding l1"): the paper's "our l1".

    ``w -> (w - (1 - rho) beta sign(w)) 1{|w| >= beta}``, with lr inside beta (``"scaled"``) or in front of
    the displacement alone (``"decoupled"``): the prox with alpha = 0, which needs no sort.
    """

    beta: Coefficient
    rho: Coefficient = 0.0
    coupling: str = "scaled"
    name: ClassVar[str] = "l1"

    def __post_init__(self) -> None:
        checks.choice("coupling", self.coupling, checks.COUPLINGS)
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``beta`` and ``rho``."""
        return {"beta": self.beta, "rho": self.rho}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on ``beta``."""
        return ("beta",)

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Threshold every weight."""
        Prox(coupling=self.coupling).after_(tensors, per, {"alpha": 0.0, **values}, step=step)


@dataclass(frozen=True)
class HardThreshold(AfterStep):
    """Iterative hard thresholding: zero every weight smaller than ``beta`` after each step, move no other.

    The prox of l0, which is rewinding with rho = 1 (Blumensath and Davies 2008; section "Rewinding").
    ``beta`` is the threshold itself, whatever the learning rate.
    """

    beta: Coefficient
    name: ClassVar[str] = "hard-threshold"

    def __post_init__(self) -> None:
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``beta``."""
        return {"beta": self.beta}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on ``beta``."""
        return ("beta",)

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Threshold every weight."""
        for w in tensors:
            w.masked_fill_(w.abs() < values["beta"], 0.0)


@dataclass(frozen=True)
class Magnitude(AfterStep):
    """Magnitude pruning during training: after each step zero the smallest weights of each vector.

    ``zeros`` is the share that is zeroed (rounded down to a count): the projection onto the vectors with
    that many zeros, so with a constant share this is iterative hard thresholding in its k-sparse form. A
    weight that is zero still gets its gradient, and comes back if a step makes it large enough. A schedule
    (``schedules.cosine(0.0, 0.9, steps)``, say) prunes gradually.
    """

    zeros: Coefficient
    name: ClassVar[str] = "magnitude"

    def __post_init__(self) -> None:
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``zeros``."""
        return {"zeros": self.zeros}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on ``zeros``."""
        return ("zeros",)

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Prune every vector."""

        def change(vector: Tensor, dim: int | None) -> None:
            prune_vectors_(vector, values["zeros"], dim)

        change_(tensors, per, change)


def prune_vectors_(w: Tensor, zeros: float, dim: int | None) -> None:
    """Zero the share ``zeros`` of smallest magnitude in each vector along ``dim``; exactly that many."""
    flat = w.reshape(-1) if dim is None else w
    dim = 0 if dim is None else dim
    count = int(zeros * flat.shape[dim] + 1e-9)
    if count:
        smallest = flat.abs().topk(count, dim=dim, largest=False).indices
        w.copy_(flat.scatter(dim, smallest, 0.0).view(w.shape))


@dataclass(frozen=True)
class BetaLasso:
    """beta-lasso (Neyshabur 2020, Algorithm 1): l1 through the gradient, and an aggressive threshold.

        w <- w - lr (grad + lambda sign(w)),    then    w <- 0 where |w| < beta lambda

    Both gradients are taken at the same point, and the threshold is not scaled by the learning rate: so the
    paper reads it (section "Rewinding", and the appendix on coupling), and so its ``beta = 50`` corresponds
    to our ``rho = 0.98``. ``lam`` is lambda, 1e-5 in the paper's CIFAR10 runs; ``threshold`` is beta.
    """

    lam: Coefficient
    threshold: Coefficient = 50.0
    name: ClassVar[str] = "beta-lasso"

    def __post_init__(self) -> None:
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``lam`` and ``threshold``."""
        return {"lam": self.lam, "threshold": self.threshold}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on ``lam``."""
        return ("lam",)

    def before_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, grad_scale: float) -> None:
        """Add ``lambda sign(w)`` to the gradients."""
        for w in tensors:
            assert w.grad is not None
            w.grad.add_(w.detach().sign().to(w.grad.dtype), alpha=values["lam"] * grad_scale)

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Threshold every weight."""
        for w in tensors:
            w.masked_fill_(w.abs() < values["threshold"] * values["lam"], 0.0)


@dataclass(frozen=True)
class Subgradient:
    """The subgradient method on ``alpha R + beta l1``: their subgradients join the gradient of the loss.

    R's is the one that gives tied weights the mean of their ranks (Eq. 9), l1's is the sign. Nothing ties:
    the paper's row "R (subgradient)". (In the authors' code R was computed from detached weights there, so
    that its gradient was zero; this is the method as described.)
    """

    alpha: Coefficient = 0.0
    beta: Coefficient = 0.0
    name: ClassVar[str] = "subgradient"

    def __post_init__(self) -> None:
        check_coefficients(self)

    def coefficients(self) -> dict[str, Coefficient]:
        """``alpha`` and ``beta``."""
        return {"alpha": self.alpha, "beta": self.beta}

    def scaled_by_schedule(self) -> tuple[str, ...]:
        """A schedule acts on both."""
        return ("alpha", "beta")

    def before_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, grad_scale: float) -> None:
        """Add the subgradients to the gradients."""
        slopes = [w.detach().clone(memory_format=torch.contiguous_format) for w in tensors]

        def change(vector: Tensor, dim: int | None) -> None:
            vector.copy_(values["alpha"] * subgradient(vector, dim=dim) + values["beta"] * vector.sign())

        change_(slopes, per, change)
        for w, slope in zip(tensors, slopes):
            assert w.grad is not None
            w.grad.add_(slope.to(w.grad.dtype), alpha=grad_scale)

    def after_(self, tensors: Sequence[Tensor], per: Per, values: Values, *, step: float) -> None:
        """Nothing: the optimizer's step has done it."""
