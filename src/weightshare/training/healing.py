"""Healing: keep the ties and the zeros that training has found, and train the shared values on without R.

(Debiasing; the authors' code calls it retraining.) The weights stay ordinary parameters of the model, so
that ``state_dict``, ``torch.compile`` and export see nothing new. A hook on each parameter gives tied
weights one common gradient, and a hook after every optimizer step makes them bitwise equal again: the
arithmetic of vectorised optimizers differs in the last place between the body and the tail of a tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from weightshare import checks
from weightshare.prox import prox
from weightshare.training import names
from weightshare.training.attach import attached_to
from weightshare.training.names import Named, listed
from weightshare.training.rules import Rule, resolve, shared_by_default
from weightshare.training.vectors import Per, pieces

GRADIENTS = ("sum", "mean")

# Optimizer state by what it is made of: gradients (linear), squares of gradients, magnitudes of gradients,
# or quantities that belong to a weight as such.
_LINEAR = ("momentum_buffer", "exp_avg", "grad_avg", "prev", "d")
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
_MAGNITUDES = ("exp_inf",)
_AVERAGED = ("ax", "step_size", "acc_delta")

_FROZEN: weakref.WeakKeyDictionary[nn.Module, FrozenClusters] = weakref.WeakKeyDictionary()


class FrozenClusters:
    """The ties of some parameters, held until :func:`unfreeze`. Made by :func:`freeze_clusters`."""

    def __init__(self, members: list[Named], per: Per, gradient: str) -> None:
        self.names = [p.name for p in members]
        self._ties = [(p.tensor, Ties(p.tensor.detach(), per, gradient)) for p in members]
        self._handles: list[Any] = []

    def _attach(self) -> None:
        for tensor, ties in self._ties:
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(ties.gradient))  # type: ignore[no-untyped-call]
        # The global hook must not keep the model alive.
        this = weakref.ref(self)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = this()
            if frozen is not None:
                frozen._after_step(optimizer)

        untraced: Any = torch.compiler.disable
        handle = register_optimizer_step_post_hook(untraced(after))
        self._handles.append(handle)
        weakref.finalize(self, handle.remove)

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        mine = [(tensor, ties) for tensor, ties in self._ties if id(tensor) in held]
        if mine:
            _refuse_sharing(optimizer, {id(tensor) for tensor, _ in mine})
        for tensor, ties in mine:
            ties.tie_(tensor)

    def __repr__(self) -> str:
        weights = sum(tensor.numel() for tensor, _ in self._ties)
        values = sum(ties.count for _, ties in self._ties)
        return f"FrozenClusters({weights:,} weights with {values:,} values: {listed(self.names)})"


class Ties:
    """Which weights of one tensor are equal, vector by vector, and which are zero."""

    def __init__(self, w: Tensor, per: Per, gradient: str) -> None:
        self.per = per
        self.mean = gradient == "mean"
        w = w.contiguous()
        # With alpha = 0 nothing moves: the clusters are the runs of equal values.
        self.clusters = [prox(piece, 0.0, dim=dim, return_clusters=True)[1] for piece, dim in pieces(w, per)]
        parts = zip(self.clusters, pieces(w, per))
        self.alive = [(c.means(piece) != 0).to(torch.float64) for c, (piece, _) in parts]

    @property
    def count(self) -> int:
        """Number of values that are trained."""
        return int(sum(float(alive.sum()) for alive in self.alive))

    def gradient(self, grad: Tensor) -> Tensor:
        """The derivative with respect to the shared value, for each of its weights; 0 for the zeros."""
        if self.mean:
            return self._each(grad, lambda means, sizes: means)
        return self._each(grad, lambda means, sizes: means * sizes)

    def tie_(self, w: Tensor) -> None:
        """Make the weights of each cluster equal to their mean; equal ones stay as they are."""
        w.copy_(self._each(w, lambda means, sizes: means))

    def merge_(self, state: Tensor, kind: str) -> None:
        """Make one entry of optimizer state out of those of tied weights; see :func:`freeze_clusters`."""
        if kind == "averaged":
            merged = self._each(state, lambda means, sizes: means)
        elif kind == "squares":
            merged = self.gradient(state.sqrt()).square()
        else:
            merged = self.gradient(state)
        state.copy_(merged)

    def _each(self, values: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A new tensor: ``combine`` of the clusters' means and sizes, for every member."""
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        parts = zip(self.clusters, self.alive, pieces(values.contiguous(), self.per), pieces(out, self.per))
        for clusters, alive, (piece, _), (target, _) in parts:
            means = clusters.means(piece.to(torch.float64))
            target.copy_(clusters.expand(combine(means, clusters.sizes) * alive))
        return out


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
        select: names, globs or module types as in :class:`Rule`; left out, the weights of every Linear
            and Conv.
        per: what is one vector, as in :class:`Rule` (but not ``"group"``): equal weights of different
            vectors are not tied.
        gradient: ``"sum"``: the derivative of the loss with respect to a shared value is the sum over its
            weights, so a value that many weights share takes large steps under SGD; lower the learning
            rate, or use Adam. ``"mean"``: the mean over them, which is gradient descent within the space of
            tied weights and goes with the learning rate of the training before.
        optimizer: one that has trained the model already. Its state is merged, as if it had seen the common
            gradients: momenta add up (exactly, since they are linear in the gradients); second moments
            become ``(sum sqrt v_i)^2``, the most that the second moment of a sum can be. (With
            ``"mean"``, means for sums.) Zeros get zero state.

    A WeightSharing that is attached for the same weights must be removed first. ``clip_grad_norm_`` sees
    the common gradients. A deep copy of the model is not frozen.

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
    if per == "group":
        raise ValueError('per must not be "group" here: ties are held within each tensor; give per="tensor"')
    names.check_module(model)
    if model in _FROZEN:
        raise ValueError("the clusters of this model are frozen already; call unfreeze(model) first")
    parameters = list(model.parameters())
    rule = Rule(shared_by_default(model, parameters) if select is None else select, alpha=0.0, per=per)
    frozen = FrozenClusters(resolve([rule], model, parameters)[0], per, gradient)
    if optimizer is not None:
        _refuse_sharing(optimizer, {id(tensor) for tensor, _ in frozen._ties})
        _merge_state(optimizer, frozen)
    frozen._attach()
    _FROZEN[model] = frozen
    return frozen


def unfreeze(model: nn.Module) -> None:
    """Let the weights of the model go their own ways again. The values stay as they are."""
    names.check_module(model)
    if model not in _FROZEN:
        raise ValueError("the clusters of this model are not frozen; freeze_clusters(model) does that")
    _FROZEN.pop(model)._detach()


def _refuse_sharing(optimizer: Optimizer, ids: set[int]) -> None:
    for sharing in attached_to(optimizer):
        for unit in sharing.units:
            for p in unit.members:
                if id(p.tensor) in ids and not sharing._paused:
                    raise ValueError(
                        f"{p.name!r} is frozen, but a WeightSharing would move it on; call its remove() first"
                    )


@torch.no_grad()
def _merge_state(optimizer: Optimizer, frozen: FrozenClusters) -> None:
    """Merge what belongs to single weights; look at everything before anything is changed."""
    todo: list[tuple[Ties, Tensor, str]] = []
    for tensor, ties in frozen._ties:
        for key, value in optimizer.state.get(tensor, {}).items():
            if isinstance(value, Tensor) and value.shape == tensor.shape and value.ndim:
                todo.append((ties, value, _kind(key)))
    for ties, value, kind in todo:
        ties.merge_(value, kind)


def _kind(key: str) -> str:
    kinds = {"linear": _LINEAR, "squares": _SQUARES, "magnitudes": _MAGNITUDES, "averaged": _AVERAGED}
    for kind, keys in kinds.items():
        if key in keys:
            return kind
    known = listed([key for keys in kinds.values() for key in keys])
    raise ValueError(
        f"do not know how to merge the optimizer state {key!r} (known are {known}); start a new optimizer "
        f"for the frozen model, and leave optimizer= out"
    )
