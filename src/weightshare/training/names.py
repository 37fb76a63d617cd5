"""Which parameters a rule means: by name, by glob, by regular expression, or by the type of their module."""

from __future__ import annotations

import difflib
import fnmatch
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

Selector = str | type[nn.Module]
Place = tuple[str, nn.Module | None, str]
Model = nn.Module | Iterable[tuple[str, Tensor]]

# Names that wrappers put in front of the model's own.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True, eq=False)
class Named:
    """A parameter and every place of the model that it stands in; the first is its name."""

    tensor: Tensor
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        return self.places[0][0]

    def moved(self) -> str | None:
        """The name of a place where the model now holds another tensor, if there is one."""
        for name, owner, leaf in self.places:
            if owner is not None and owner._parameters.get(leaf) is not self.tensor:
                return name
        return None

    def in_module(self, kind: type[nn.Module]) -> bool:
        """Whether it is a weight (not a bias) that a module of this type has of its own."""
        return any(isinstance(owner, kind) and "weight" in leaf for _, owner, leaf in self.places)


def check_model(model: Any) -> None:
    """Raise for what has no named parameters."""
    if not isinstance(model, (nn.Module, Iterable)):
        raise TypeError(
            f"model must be a torch.nn.Module or pairs of a name and a tensor, got {type(model).__name__}"
        )


def check_module(model: Any) -> None:
    """Raise for what is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def bare(model: nn.Module) -> nn.Module:
    """The module inside of what ``torch.compile``, DDP and activation checkpointing put around it."""
    for name in _inner(model):
        return bare(model._modules[name] or model)
    return model


def _inner(module: nn.Module) -> list[str]:
    """The children of a module that it only wraps."""
    parallel = isinstance(module, (DistributedDataParallel, DataParallel))
    return [name for name in module._modules if name in _WRAPPERS or (parallel and name == "module")]


def named_parameters(model: Model) -> list[Named]:
    """Every parameter once, shared ones too, under the names of the bare model.

    What ``torch.compile``, DDP and activation checkpointing put in front of a name is left out.

    >>> import torch
    >>> lin = torch.nn.Linear(2, 2, bias=False)
    >>> [p.name for p in named_parameters(torch.nn.Sequential(lin, torch.nn.ReLU(), lin))]
    ['0.weight']
    """
    check_model(model)
    if isinstance(model, nn.Module):
        _refuse_flat_shards(model)
    found: dict[int, tuple[Tensor, list[Place]]] = {}
    for tensor, place in _walk(model):
        if isinstance(tensor, UninitializedParameter):
            raise ValueError(
                f"parameter {place[0]!r} has no shape yet; run a batch through the lazy module first"
            )
        found.setdefault(id(tensor), (tensor, []))[1].append(place)
    return [Named(tensor, tuple(places)) for tensor, places in found.values()]


def _refuse_flat_shards(model: nn.Module) -> None:
    """The parameters of the first FSDP are pieces of flattened tensors: no rank could tell the vectors."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return  # who has made one has imported it
    for name, module in model.named_modules():
        flat = isinstance(module, fsdp.FullyShardedDataParallel)
        if flat and module.sharding_strategy != fsdp.ShardingStrategy.NO_SHARD:
            raise ValueError(
                f"model{f'.{name}' if name else ''} is a FullyShardedDataParallel, which leaves every rank "
                f"with pieces of flattened tensors; use fully_shard (FSDP2), or a model that is whole"
            )


def _walk(model: Model) -> Iterator[tuple[Tensor, Place]]:
    if isinstance(model, nn.Module):
        yield from _walk_module(model, "")
        return
    for name, tensor in model:
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise TypeError(f"model must give pairs of a name and a tensor, got {name!r}, {tensor!r}")
        yield tensor, (name, None, name.rpartition(".")[2])


def _walk_module(module: nn.Module, prefix: str) -> Iterator[tuple[Tensor, Place]]:
    for leaf, tensor in module._parameters.items():
        if tensor is not None:
            yield tensor, (prefix + leaf, module, leaf)
    hidden = _inner(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk_module(child, prefix if name in hidden else f"{prefix}{name}.")


def check_selector(selector: object) -> tuple[Selector, ...]:
    """Accept a name, a glob, ``"re:..."``, a module type, or several of them."""
    several = tuple(selector) if isinstance(selector, (list, tuple)) else (selector,)
    if not several:
        raise ValueError("a rule must select something, got an empty list; give names, globs or module types")
    for one in several:
        if isinstance(one, str) and one.startswith("re:"):
            try:
                re.compile(one[3:])
            except re.error as error:
                raise ValueError(f"{one!r} is not a regular expression: {error}") from None
        elif not (isinstance(one, str) or (isinstance(one, type) and issubclass(one, nn.Module))):
            raise TypeError(
                f'a rule selects by name, by glob, by "re:..." or by a module type, got {one!r} '
                f"({type(one).__name__})"
            )
    return several


def select(selector: Selector, parameters: Iterable[Named]) -> list[Named]:
    """The parameters that a string selects, under any of their names; or a module type's weights."""
    if isinstance(selector, str):
        return [p for p in parameters if any(_matches(selector, name) for name, _, _ in p.places)]
    return [p for p in parameters if p.in_module(selector)]


def _matches(selector: str, name: str) -> bool:
    if selector.startswith("re:"):
        return re.fullmatch(selector[3:], name) is not None
    return selector == name or fnmatch.fnmatchcase(name, selector)


def nothing_matched(selector: Selector, parameters: Iterable[Named]) -> str:
    """What to tell a user whose selector matches nothing: the nearest spellings, and what there is."""
    names = [name for p in parameters for name, _, _ in p.places]
    owners = [owner for p in parameters for _, owner, _ in p.places]
    if isinstance(selector, str):
        near = difflib.get_close_matches(selector.removeprefix("re:"), names, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        return f"{selector!r} matches no parameter{hint} The names are: {listed(names)}"
    kinds = sorted({type(owner).__name__ for owner in owners if owner is not None})
    return (
        f"{selector.__name__} matches no weight; the modules with parameters are of the types "
        f"{', '.join(kinds) or '(none: only names were given)'}. The names are: {listed(names)}"
    )


def listed(names: list[str], most: int = 20) -> str:
    """Names for an error message, cut where there are too many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "") if names else "(none)"
