"""Rules: which weights are shared, over which vectors, how strongly, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn.utils import parametrize

from weightshare import checks
from weightshare.distributed import is_dtensor
from weightshare.training import inputs, names
from weightshare.training.controller import Goal
from weightshare.training.methods import Method, Prox
from weightshare.training.names import Named, Selector
from weightshare.training.schedules import Coefficient, Schedule
from weightshare.training.vectors import Per, check_per, check_shape

LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.modules.conv._ConvNd)
"""What is regularised when no rule says otherwise: the weights of Linear, Conv and ConvTranspose."""

_START = 1e-4


@dataclass(frozen=True)
class Rule:
    """Regularise the selected weights by ``alpha R + beta l1`` with rewinding ``rho``.

    Args:
        select: a parameter's name (``"fc1.weight"``), a glob (``"encoder.*.weight"``), ``"re:"`` and a
            regular expression for the whole name, a module type (the weights, not the biases, of every
            module of that type), or a list of these. Rules that name win over rules that give a type;
            otherwise no parameter may be in two rules.
        alpha: coefficient of R: a number, or a schedule (:mod:`weightshare.schedules`).
        beta: coefficient of l1, likewise.
        rho: rewinding in [0, 1], likewise.
        per: what is one vector: each ``"tensor"``, ``"row"`` (one index of the first dimension),
            ``"column"`` (across it), a block of that many consecutive weights (an int; the last block
            may be shorter), or the whole ``"group"`` of tensors that the rule selects.
        coupling: ``"scaled"`` or ``"decoupled"``, see :func:`weightshare.prox`.
        schedule: a factor for alpha and beta at each step, a warm-up for example.
        target_bits: adapt alpha until a weight takes at most so many bits (entropy of the values).
        target_distinct: adapt alpha until there are at most so many distinct values.
        target_zeros: adapt beta until at least this share of the weights is zero.
        tolerance: how far below its target a controlled layer may be before it is relaxed, as a share of
            the target; see :class:`weightshare.training.controller.Controller`.
        method: a baseline (:mod:`weightshare.training.baselines`) instead of ``alpha``, ``beta`` and ``rho``.

    >>> Rule("fc1.weight", alpha=1e-3)
    Rule('fc1.weight', alpha=0.001)
    """

    select: Selector | Sequence[Selector]
    alpha: Coefficient | None = None
    beta: Coefficient | None = None
    rho: Coefficient | None = None
    per: Per = "tensor"
    coupling: str = "scaled"
    schedule: Schedule | None = None
    target_bits: float | None = None
    target_distinct: int | None = None
    target_zeros: float | None = None
    tolerance: float = 0.1
    method: Method | None = None

    def __post_init__(self) -> None:
        names.check_selector(self.select)
        check_per(self.per)
        checks.choice("coupling", self.coupling, checks.COUPLINGS)
        if self.schedule is not None and not callable(self.schedule):
            raise TypeError(f"schedule must be callable with the step number, got {self.schedule!r}")
        given = {k: getattr(self, k) for k in ("alpha", "beta", "rho") if getattr(self, k) is not None}
        if self.method is not None and not isinstance(self.method, Method):
            raise TypeError(
                f"method must be one of weightshare.baselines, or an object like these, got {self.method!r}"
            )
        if self.method is not None and (given or self.coupling != "scaled"):
            raise ValueError(
                f"method={self.method!r} has its own coefficients; give them there, not to the rule: {given}"
            )
        if self.method is None and self.goal is None and not given.keys() & {"alpha", "beta"}:
            raise ValueError(
                f"the rule for {self.select!r} does nothing: give alpha, beta, a target or a method"
            )
        what = self.what  # raises for coefficients out of range
        if self.goal is not None and self.goal.coefficient not in what.coefficients():
            raise ValueError(
                f"target_{self.goal.quantity} adapts {self.goal.coefficient}; {what!r} does not have it"
            )

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """The selectors, one by one."""
        return names.check_selector(self.select)

    @cached_property
    def goal(self) -> Goal | None:
        """What a controller shall reach, if the rule sets a target."""
        targets = {q: getattr(self, f"target_{q}") for q in ("bits", "distinct", "zeros")}
        targets = {q: target for q, target in targets.items() if target is not None}
        if len(targets) > 1:
            raise ValueError(f"a rule can have one target, got {', '.join(f'target_{q}' for q in targets)}")
        if "distinct" in targets:
            inputs.whole("target_distinct", targets["distinct"], least=1)
        return next((Goal(q, target, self.tolerance) for q, target in targets.items()), None)

    @cached_property
    def what(self) -> Method:
        """The method, with the coefficients filled in."""
        if self.method is not None:
            return self.method
        start = {self.goal.coefficient: _START} if self.goal is not None else {}
        alpha, beta, rho = (
            start.get(name, 0.0) if value is None else value
            for name, value in (("alpha", self.alpha), ("beta", self.beta), ("rho", self.rho))
        )
        return Prox(alpha, beta, rho, self.coupling)

    def __repr__(self) -> str:
        select = self.select if isinstance(self.select, (list, tuple)) else [self.select]
        shown = [s.__name__ if isinstance(s, type) else repr(s) for s in select]
        parts = [shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"]
        for key, field in self.__dataclass_fields__.items():
            value = getattr(self, key)
            if key != "select" and value != field.default:
                parts.append(f"{key}={value!r}")
        return f"Rule({', '.join(parts)})"


def resolve(rules: Sequence[Rule], model: names.Model, held: Iterable[torch.Tensor]) -> list[list[Named]]:
    """The parameters of each rule, in the model's order; ``held`` are those that the optimizer steps."""
    parameters = names.named_parameters(model)
    ids = {id(tensor) for tensor in held}
    for rule in rules:
        _refuse_parametrized(model, tuple(s for s in rule.selectors if isinstance(s, type)))
    named = [_select(rule, parameters, str) for rule in rules]
    _no_overlap(rules, named)
    taken = {id(p) for chosen in named for p in chosen}
    typed = [_select(rule, parameters, type) for rule in rules]
    typed = [[p for p in chosen if id(p) not in taken] for chosen in typed]
    _no_overlap(rules, typed)
    return [_held(rule, a + b, parameters, ids) for rule, a, b in zip(rules, named, typed)]


def units(rule: Rule, chosen: Sequence[Named]) -> list[list[Named]]:
    """One list for each tensor, or one for all of them where the rule makes them one vector."""
    return [list(chosen)] if rule.per == "group" else [[p] for p in chosen]


def _select(rule: Rule, parameters: list[Named], kind: type) -> list[Named]:
    """What the rule's selectors of one kind (names or types) select, in the model's order."""
    chosen: set[int] = set()
    for selector in rule.selectors:
        if isinstance(selector, kind):
            found = names.select(selector, parameters)
            if not found:
                raise ValueError(f"{rule!r}: {names.nothing_matched(selector, parameters)}")
            chosen.update(map(id, found))
    return [p for p in parameters if id(p) in chosen]


def _no_overlap(rules: Sequence[Rule], chosen: list[list[Named]]) -> None:
    owner: dict[int, Rule] = {}
    for rule, mine in zip(rules, chosen):
        for p in mine:
            if id(p) in owner:
                raise ValueError(
                    f"{p.name!r} is in two rules, {owner[id(p)]!r} and {rule!r}; narrow one of them"
                )
            owner[id(p)] = rule


def _held(rule: Rule, chosen: list[Named], parameters: list[Named], ids: set[int]) -> list[Named]:
    """Those of the chosen that the optimizer has; at least one, and every one that was named in full."""
    exact = {s for s in rule.selectors if isinstance(s, str)}
    mine = [p for p in chosen if id(p.tensor) in ids]
    for p in chosen:
        if id(p.tensor) not in ids and (not mine or any(name in exact for name, _, _ in p.places)):
            held = [q.name for q in parameters if id(q.tensor) in ids]
            raise ValueError(
                f"{rule!r}: {p.name!r} is not among the parameters of this optimizer, which are: "
                f"{names.listed(held)}; attach to the optimizer that steps it, and build that after the "
                f"model has its final parameters"
            )
    if not mine:
        raise ValueError(f"{rule!r}: every weight it selects is taken by a rule that names it; drop the rule")
    for p in mine:
        checks.float_tensor(p.name, p.tensor)
        check_shape(p.name, p.tensor, rule.per)
    _check_group(rule, mine)
    return mine


def _check_group(rule: Rule, mine: list[Named]) -> None:
    kinds = [(p.tensor.dtype, p.tensor.device, *_layout(p.tensor)) for p in mine]
    if rule.per == "group" and len(set(kinds)) > 1:
        shown = ", ".join(f"{p.name} ({', '.join(map(str, kind))})" for p, kind in zip(mine, kinds))
        raise ValueError(
            f'{rule!r}: per="group" needs one dtype, one device and, across ranks, one mesh, sharded along '
            f"one of its dimensions; got {shown}; use one rule for each"
        )


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """The mesh of a DTensor, and along which of its dimensions it is sharded."""
    if not is_dtensor(tensor):
        return ()
    return (tensor.device_mesh, *("whole" if p.is_replicate() else "shards" for p in tensor.placements))


def _refuse_parametrized(model: names.Model, kinds: tuple[type[nn.Module], ...]) -> None:
    """A weight behind a parametrisation is computed, so a type cannot mean it."""
    if not isinstance(model, nn.Module) or not kinds:
        return
    for name, module in model.named_modules():
        if isinstance(module, kinds) and _is_computed(module):
            raise ValueError(
                f"the weight of {name!r} is computed by a parametrisation, weight norm or pruning; name the "
                f"parameters behind it, or bake it in (parametrize.remove_parametrizations, "
                f"remove_weight_norm, prune.remove)"
            )


def _is_computed(module: nn.Module) -> bool:
    """Whether the weight is no parameter but the result of others, set anew at every forward pass."""
    by_hook = isinstance(module.__dict__.get("weight"), torch.Tensor)
    return by_hook or parametrize.is_parametrized(module, "weight")


def shared_by_default(model: names.Model, held: Iterable[torch.Tensor]) -> list[str]:
    """The names of the weight of every Linear and Conv among those that are ``held`` by an optimizer.

    A weight that a Linear shares with an Embedding is the embedding's, and is left out.
    """
    ids = {id(tensor) for tensor in held}
    parameters = names.named_parameters(model)
    _refuse_parametrized(model, LAYERS)
    chosen = [p.name for p in parameters if id(p.tensor) in ids and _in_layer(p)]
    if not chosen:
        shown = names.listed([p.name for p in parameters])
        raise ValueError(
            f"there is no weight of a Linear, Conv or ConvTranspose in the model that this optimizer steps; "
            f"give rules that name what to share. The names are: {shown}"
        )
    return chosen


def _in_layer(p: Named) -> bool:
    return any(p.in_module(kind) for kind in LAYERS) and not p.in_module(nn.Embedding)
