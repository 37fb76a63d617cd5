"""Layers with tied weights become layers with packed indices wherever that saves memory; and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from weightshare import checks, distributed
from weightshare.compress.conv import CodebookConv2d
from weightshare.compress.linear import CodebookLinear
from weightshare.compress.modules import CodebookModule, best_packed, check_stretch
from weightshare.compress.weights import PackedWeight
from weightshare.training import inputs, names
from weightshare.training.names import Named
from weightshare.training.report import Table
from weightshare.training.vectors import Per

# Exactly these: a subclass may use its weight in ways of its own.
_KINDS: dict[type[nn.Module], type[CodebookLinear] | type[CodebookConv2d]] = {
    nn.Linear: CodebookLinear,
    NonDynamicallyQuantizableLinear: CodebookLinear,  # what MultiheadAttention has as out_proj
    nn.Conv2d: CodebookConv2d,
}
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def compact(
    model: nn.Module, select: Any = None, *, per: Per | None = None, block: int | None = None
) -> Table:
    """Replace every Linear and Conv2d whose weight then takes less memory by one with packed indices.

    The layers become :class:`CodebookLinear` and :class:`CodebookConv2d`: the same outputs, bit for bit (or,
    with ``block``, within rounding). Parameters are replaced, so do this to a model that is trained, or
    give the optimizer the new ones. A layer or a weight that stands in several places is replaced once and
    stays shared.

    Args:
        model: changed in place; it must not itself be the layer.
        select: which weights, by names, globs or module types as in :class:`Rule`; left out, all.
        per: for what there is a codebook: the ``"tensor"``, each ``"row"``, each block of so many consecutive
            weights (a number that divides the weight); left out, the smaller of tensor and row.
        block: how many weights at most are expanded at a time, see :class:`CodebookLinear`.

    Returns what became of each weight (and of other parameters with two dimensions or more), in bytes before
    and after; where it was left alone, why.

    >>> import torch, weightshare as ws
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    >>> tied = ws.tie(model, "0.weight", bits=2)
    >>> ws.compact(model)
    tensor    layer   weights  codebooks  values  bits  before  after  left alone
    0.weight  Linear    2,048          1       4     2   8,192    528
    2.weight  Linear      320                            1,280  1,280  its values are too many
    the rest               42                              168    168
    total               2,410                            9,640  1,976
    """
    names.check_module(model)
    check_stretch(per)
    if block is not None:
        inputs.whole("block", block, least=1)
    chosen = _chosen(model, select)
    plans = [(p, *_plan(p, model, chosen, per)) for p in names.named_parameters(model) if p.tensor.ndim > 1]
    before = _bytes(model)
    weights = sum(p.numel() for p in model.parameters())
    new: dict[int, nn.Module] = {}
    for p, packed, _ in plans:
        if packed is not None:
            new.update(_replacements(p, packed, block))
    replace(model, new)
    rows = [_row(p, packed, why) for p, packed, why in plans]
    rest = {
        "tensor": "the rest",
        "weights": weights - sum(row["weights"] for row in rows),
        "before": before - sum(row["before"] for row in rows),
        "after": _bytes(model) - sum(row["after"] for row in rows),
    }
    total = {"tensor": "total", "weights": weights, "before": before, "after": _bytes(model)}
    return Table([*rows, rest, total])


def expand(model: nn.Module) -> None:
    """Replace every CodebookLinear and CodebookConv2d by the layer with the same weight, bit for bit.

    >>> import torch, weightshare as ws
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    >>> tied = ws.tie(model, bits=2)
    >>> before = model[0].weight.detach().clone()
    >>> made = ws.compact(model)
    >>> ws.expand(model)
    >>> torch.equal(model[0].weight, before)
    True
    """
    names.check_module(model)
    if isinstance(model, CodebookModule):
        raise ValueError(f"model is itself a {type(model).__name__}; use model.to_dense()")
    new: dict[int, nn.Module] = {}
    shared: dict[tuple[int, int], nn.Parameter] = {}
    for name, module in model.named_modules():
        if isinstance(module, (CodebookLinear, CodebookConv2d)):
            if _hooked(module):
                raise ValueError(f"{name!r} has hooks, which would be lost; remove them first")
            dense = module.to_dense()
            key = id(module.codebook), id(module.indices)
            assert isinstance(dense.weight, nn.Parameter)
            dense.weight = shared.setdefault(key, dense.weight)
            new[id(module)] = dense
    replace(model, new)


def _chosen(model: nn.Module, select: Any) -> set[int]:
    """The ids of the parameters that may be replaced."""
    parameters = names.named_parameters(model)
    if select is None:
        return {id(p.tensor) for p in parameters}
    chosen: set[int] = set()
    for selector in names.check_selector(select):
        found = names.select(selector, parameters)
        if not found:
            raise ValueError(names.nothing_matched(selector, parameters))
        chosen.update(id(p.tensor) for p in found)
    return chosen


def _plan(
    p: Named, model: nn.Module, chosen: set[int], per: Per | None
) -> tuple[PackedWeight | None, str | None]:
    """The packed weight, or why it is left alone."""
    why = _obstacle(p, model) if id(p.tensor) in chosen else "not selected"
    if why is not None:
        return None, why
    if isinstance(per, int) and p.tensor.numel() % per:
        return None, f"{p.tensor.numel():,} weights are not blocks of {per}"
    packed = best_packed(p.tensor.detach(), per)
    return packed, None if packed is not None else "its values are too many"


def _obstacle(p: Named, model: nn.Module) -> str | None:
    """What speaks against replacing the modules that a parameter stands in."""
    for _, owner, leaf in p.places:
        kind = type(owner).__name__
        if isinstance(owner, CodebookModule):
            return "packed already"
        if isinstance(owner, nn.Module) and parametrize.is_parametrized(owner):
            return "its layer has parametrisations"
        if type(owner) not in _KINDS or leaf != "weight":
            return (
                f"shared with {kind}, which is not supported"
                if len(p.places) > 1
                else f"a layer of type {kind}"
            )
        if owner is model:
            return f"the model is itself the {kind}; use from_dense"
        if _hooked(owner):
            return "its layer has hooks"
    if distributed.is_dtensor(p.tensor) or type(p.tensor) is not nn.Parameter or p.tensor.is_meta:
        return "it has no memory yet" if p.tensor.is_meta else f"a tensor of type {type(p.tensor).__name__}"
    return None if p.tensor.dtype in checks.FLOATS else f"its dtype is {p.tensor.dtype}"


def _hooked(module: Any) -> bool:
    """Whether something would be lost with the module: hooks, or a forward that was put in its place."""
    return "forward" in vars(module) or any(getattr(module, name, None) for name in _HOOKS)


def _replacements(p: Named, packed: PackedWeight, block: int | None) -> dict[int, nn.Module]:
    """The new modules for all places of a weight, by the old ones' ids; they share codebook and indices."""
    new: dict[int, nn.Module] = {}
    first: CodebookModule | None = None
    for _, owner, _ in p.places:
        assert owner is not None
        if id(owner) in new:
            continue
        made = _KINDS[type(owner)]._around(owner, block)._filled(packed, p.tensor)  # type: ignore[arg-type]
        if first is None:
            first = made
        made.codebook, made.indices = first.codebook, first.indices
        new[id(owner)] = made
    return new


def replace(model: nn.Module, new: dict[int, nn.Module]) -> None:
    """Put new modules in the places of old ones."""
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if id(child) in new:
                module._modules[name] = new[id(child)]


def _bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    every: Callable[[Iterable[Tensor]], int] = lambda tensors: sum(t.nbytes for t in tensors)  # noqa: E731
    return every(model.parameters()) + every(model.buffers())


def _row(p: Named, packed: PackedWeight | None, why: str | None) -> dict[str, Any]:
    owner = p.places[0][1]
    row = {"tensor": p.name, "layer": type(owner).__name__, "weights": p.tensor.numel()}
    if packed is None:
        return {**row, "before": p.tensor.nbytes, "after": p.tensor.nbytes, "left alone": why}
    groups, values = packed.values.shape
    bits = packed.indices.size // -(-p.tensor.numel() // 8)
    return {
        **row, "codebooks": groups, "values": values, "bits": bits, "before": p.tensor.nbytes,
        "after": packed.nbytes,
    }  # fmt: skip
