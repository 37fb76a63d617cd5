"""Healing: keep the ties and the zeros that training has found, and train the shared values on without R.

(Debiasing; the authors' code calls it retraining.) The weights stay ordinary parameters of the model, and
nothing is hooked to them, so that ``state_dict``, ``torch.compile``, export, copies and checkpoints see
nothing new. Everything happens around the optimizer's step: for its duration tied weights have one common
gradient, and after it they are made bitwise equal again, since the arithmetic of vectorised optimizers
differs in the last place between the body and the tail of a tensor.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from weightshare import checks
from weightshare.training import inputs, names
from weightshare.training.attach import attached_to
from weightshare.training.names import listed
from weightshare.training.optimizers import bare, nested, with_gradients
from weightshare.training.rules import Rule, resolve, shared_by_default, units
from weightshare.training.ties import Ties
from weightshare.training.vectors import Per

GRADIENTS = ("sum", "mean")

_FROZEN: weakref.WeakKeyDictionary[nn.Module, FrozenClusters] = weakref.WeakKeyDictionary()


class FrozenClusters:
    """The ties of some parameters, held until :func:`unfreeze`. Made by :func:`freeze_clusters`."""

    def __init__(self, ties: list[Ties]) -> None:
        self._ties = ties
        self._lent: dict[Tensor, tuple[Tensor | None, Tensor]] = {}
        self._handles: list[Any] = []

    def _attach(self) -> None:
        # Hooks on all optimizers; they must not keep the model alive.
        this = weakref.ref(self)

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            frozen = this()
            mine = [] if frozen is None or nested(optimizer) else frozen._held_by(optimizer)
            if frozen is None or not mine:
                return None
            return with_gradients(args, kwargs, lambda: frozen._lend_gradients(mine))

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = this()
            if frozen is not None and not nested(optimizer):
                frozen._after_step(optimizer)

        untraced: Any = torch.compiler.disable
        self._handles = [
            register_optimizer_step_pre_hook(untraced(before)),
            register_optimizer_step_post_hook(untraced(after)),
        ]
        for handle in self._handles:
            weakref.finalize(self, handle.remove)

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _held_by(self, optimizer: Optimizer) -> list[Ties]:
        """The ties among the parameters that this optimizer steps; raises if it must not step them."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        mine = [ties for ties in self._ties if any(id(t) in held for t in ties.tensors)]
        for ties in mine:
            inputs.dense_gradients(dict(zip(ties.names, ties.tensors)), "freeze_clusters")
            if not all(id(t) in held for t in ties.tensors):
                raise ValueError(f"{listed(ties.names)} share values, but this optimizer has not all of them")
            if len({t.requires_grad for t in ties.tensors}) > 1:
                raise ValueError(
                    f"{listed(ties.names)} share values, but not all of them require a gradient; set "
                    f"requires_grad for all or none, or call unfreeze(model)"
                )
        _refuse_sharing(optimizer, mine)
        return mine

    @torch.no_grad()
    def _lend_gradients(self, mine: list[Ties]) -> None:
        """For this step the common gradients; afterwards the parameters get back their own."""
        for ties in mine:
            own = [t.grad for t in ties.tensors]
            if all(g is None for g in own):
                continue
            grads = [torch.zeros_like(t) if g is None else g for t, g in zip(ties.tensors, own)]
            for tensor, grad, common in zip(ties.tensors, own, ties.common(grads)):
                self._lent[tensor] = grad, common
                tensor.grad = common

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer) -> None:
        for ties in self._held_by(optimizer):
            for tensor in ties.tensors:
                own, common = self._lent.pop(tensor, (None, None))
                if common is not None and tensor.grad is common:
                    tensor.grad = own
            ties.tie_()

    def __repr__(self) -> str:
        weights = sum(t.numel() for ties in self._ties for t in ties.tensors)
        values = sum(ties.count for ties in self._ties)
        held = listed([name for ties in self._ties for name in ties.names])
        return f"FrozenClusters({weights:,} weights with {values:,} values: {held})"


def freeze_clusters(
    model: nn.Module,
    select: Any = None,
    *,
    per: Per = "tensor",
    gradient: str = "sum",
    optimizer: Optimizer | None = None,
) -> FrozenClusters:
    """From now on keep equal weights equal and zeros zero, whatever optimizer trains the model.

    Args:
        model: its weights stay parameters of the same names and shapes. What is equal now is what stays
            equal: after loading a checkpoint, freeze again.
        select: the rules of the training before (``sharing.rules``), each with the vectors that it had; or
            names, globs or module types as in :class:`Rule`; left out, the weights of every Linear and Conv.
        per: what is one vector, as in :class:`Rule`: equal weights of different vectors are not tied.
        gradient: ``"sum"``: the derivative of the loss with respect to a shared value is the sum over its
            weights, so a value that many weights share takes large steps under SGD; lower the learning
            rate, or use Adam. ``"mean"``: the mean over them, which is gradient descent within the space of
            tied weights and goes with the learning rate of the training before.
        optimizer: one that has trained the model already. Its state is merged, as if it had seen the common
            gradients: momenta add up (exactly, since they are linear in the gradients); second moments
            become ``(sum sqrt v_i)^2``, the most that the second moment of a sum can be. (With
            ``"mean"``, means for sums.) Zeros get zero state.

    A WeightSharing that is attached for the same weights must be removed first. Outside of the step the
    parameters have the gradients of the single weights, which is what ``clip_grad_norm_`` sees. A deep copy
    of the model is not frozen. Parameters may be DTensors; theirs are gathered at every step.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> with torch.no_grad(): _ = model.weight.copy_(torch.tensor([[2.0, 2.0, 0.0]]))
    >>> freeze_clusters(model)
    FrozenClusters(3 weights with 1 values: weight)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> model(torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    >>> optimizer.step()
    >>> model.weight.data
    tensor([[0.5000, 0.5000, 0.0000]])
    >>> unfreeze(model)
    """
    checks.choice("gradient", gradient, GRADIENTS)
    names.check_module(model)
    if names.bare(model) in _FROZEN:
        raise ValueError("the clusters of this model are frozen already; call unfreeze(model) first")
    rules, parameters = _rules(model, select, per), list(model.parameters())
    ties = []
    for rule, chosen in zip(rules, resolve(rules, model, parameters)):
        ties += [Ties(members, rule.per, gradient) for members in units(rule, chosen)]
    if optimizer is not None:
        optimizer = bare(optimizer)
        _refuse_sharing(optimizer, ties)
        _merge_state(optimizer, ties)
    frozen = FrozenClusters(ties)
    frozen._attach()
    _FROZEN[names.bare(model)] = frozen
    return frozen


def unfreeze(model: nn.Module) -> None:
    """Let the weights of the model go their own ways again. The values stay as they are."""
    names.check_module(model)
    if names.bare(model) not in _FROZEN:
        raise ValueError("the clusters of this model are not frozen; freeze_clusters(model) does that")
    _FROZEN.pop(names.bare(model))._detach()


def _rules(model: nn.Module, select: Any, per: Per) -> list[Rule]:
    given = list(select) if isinstance(select, (list, tuple)) else [select]
    if not any(isinstance(one, Rule) for one in given):
        chosen = shared_by_default(model, model.parameters()) if select is None else select
        return [Rule(chosen, alpha=0.0, per=per)]
    if not all(isinstance(one, Rule) for one in given):
        raise TypeError(f"select must be rules, or names and module types, not both; got {select!r}")
    if per != "tensor":
        raise ValueError(f"rules have their own per; give it there, not per={per!r} beside them")
    return given


def _refuse_sharing(optimizer: Optimizer, ties: list[Ties]) -> None:
    ids = {id(t) for one in ties for t in one.tensors}
    for sharing in attached_to(optimizer):
        for unit in sharing.units:
            for p in unit.members:
                if id(p.tensor) in ids and not sharing._paused:
                    raise ValueError(
                        f"{p.name!r} is frozen, but a WeightSharing would move it on; call its remove() first"
                    )


@torch.no_grad()
def _merge_state(optimizer: Optimizer, ties: list[Ties]) -> None:
    """Merge what belongs to single weights; look at everything before anything is changed."""
    found = [(one, one.state_of(optimizer)) for one in ties]
    for one, states in found:
        for key, state in states.items():
            one.merge_(key, state)
