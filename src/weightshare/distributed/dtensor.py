"""DTensors: which ranks hold one vector together, and the way there and back where they do not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from weightshare import checks
from weightshare.distributed.shards import agree, solve_
from weightshare.distributed.wire import DistributedInfo, Wire
from weightshare.prox import Number, prox_

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(value: Any) -> TypeGuard[DTensor]:
    """Whether ``value`` is a DTensor. (Its module takes long to import; who has one has imported it.)

    >>> import torch
    >>> is_dtensor(torch.zeros(2))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


@torch.no_grad()
def dtensor_prox_(
    w: DTensor | Sequence[DTensor],
    alpha: Number,
    beta: Number = 0.0,
    rho: Number = 0.0,
    *,
    step: Number = 1.0,
    coupling: str = "scaled",
    dim: int | None = None,
) -> DistributedInfo:
    """:func:`weightshare.prox_` of a DTensor in place, or of several that are one vector together.

    Placements may be ``Replicate`` on any dimensions of the mesh and ``Shard`` on at most one: FSDP2's
    ``fully_shard`` on a mesh of one dimension or (HSDP) two. Replicas stay bitwise equal, without a message.
    With ``dim=None`` the shards are the pieces of one vector (:func:`weightshare.distributed.prox_`). With
    ``dim``, slices along it are the vectors: nothing but an agreement is exchanged if the tensor is
    sharded along another dimension; if it is sharded along ``dim`` itself, it is gathered on every rank.
    Every rank of the mesh must call.
    """
    tensors = [w] if isinstance(w, Tensor) else list(w)
    for tensor in tensors:
        if not is_dtensor(tensor):
            raise TypeError(f"w must be a DTensor, got {type(tensor).__name__}; use weightshare.prox_")
    if not tensors or (dim is not None and len(tensors) > 1):
        raise ValueError(f"w must be one DTensor, or several with dim=None, got {len(tensors)} and dim={dim}")
    coefficients = (alpha, beta, rho, step, coupling)
    if dim is None:
        axes = {_axis(tensor) for tensor in tensors}
        if len(axes) > 1 or len({t.device_mesh for t in tensors}) > 1:
            raise ValueError(
                "the DTensors of one vector must lie on one mesh, all sharded on one of its dimensions or "
                "all replicated; redistribute() them to the same placements"
            )
        locals_ = [t.to_local().detach() for t in tensors]
        return solve_(locals_, *coefficients, wire=wire_of(tensors[0]))
    return _along(tensors[0], coefficients, checks.dimension(dim, tensors[0]))


def _along(w: DTensor, coefficients: tuple[Any, ...], dim: int | None) -> DistributedInfo:
    """The prox of every slice along ``dim``."""
    alpha, beta, rho, step, coupling = coefficients
    axis = _axis(w)
    wire = wire_of(w)
    work = unshard(w, [k for k in range(w.ndim) if k != dim], wire)
    prox_(work, alpha, beta, rho, step=step, coupling=coupling, dim=dim)
    reshard_(w, work)
    route = "gathered" if axis is not None and _dim(w, axis) == dim else "local"
    return DistributedInfo(route, weights=w.numel(), ranks=wire.ranks, bytes_exchanged=wire.bytes)


@torch.no_grad()
def unshard(w: DTensor, keep: Sequence[int] = (), wire: Wire | None = None) -> Tensor:
    """All of ``w``; or only this rank's shard, if ``w`` is sharded along a dimension of ``keep``.

    The shard is a view of the memory of ``w``. Before it is handed out, the ranks agree that all shards
    are finite, so that none of them is written where another one raises.
    """
    axis = _axis(w)
    local = w.to_local().detach()
    if axis is None:
        return local
    wire = wire or wire_of(w)
    if _dim(w, axis) in [k % w.ndim for k in keep]:
        agree(wire, local.reshape(-1))
        return local
    with wire.explained("gathering a DTensor"):
        full: Tensor = w.full_tensor().detach()
    wire.count(full.nbytes if wire.ranks > 1 else 0)
    return full


@torch.no_grad()
def reshard_(w: DTensor, work: Tensor) -> None:
    """Write into ``w`` what :func:`unshard` gave, after it was changed."""
    local = w.to_local().detach()
    if work.data_ptr() == local.data_ptr() and work.shape == local.shape:
        return
    from torch.distributed.tensor import DTensor, Replicate

    mesh = w.device_mesh
    everywhere = DTensor.from_local(work, mesh, [Replicate()] * mesh.ndim, run_check=False)
    local.copy_(everywhere.redistribute(placements=w.placements).to_local())


def whole(w: Tensor) -> Tensor:
    """The values of ``w`` to be read: gathered on every rank if it is a DTensor, else ``w`` itself.

    >>> import torch
    >>> whole(torch.ones(2))
    tensor([1., 1.])
    """
    return unshard(w) if is_dtensor(w) else w


def _axis(w: DTensor) -> int | None:
    """The dimension of the mesh along which ``w`` is sharded; None if it is replicated."""
    mesh = w.device_mesh
    if mesh.get_coordinate() is None:
        raise ValueError("this rank is not in the mesh of the DTensor; only ranks of the mesh may call")
    if any(p.is_partial() for p in w.placements):
        raise ValueError(
            f"w must not be a pending sum, got placements {w.placements}; redistribute() it to Shard or "
            f"Replicate first"
        )
    axes = [k for k, p in enumerate(w.placements) if not p.is_replicate()]
    if len(axes) > 1:
        raise ValueError(
            f"w must be sharded along at most one dimension of its mesh, got placements {w.placements} on a "
            f"mesh of shape {tuple(mesh.shape)}; redistribute() it to be sharded along one of them only"
        )
    return axes[0] if axes else None


def _dim(w: DTensor, axis: int) -> int:
    """The dimension of the tensor that is sharded."""
    dim: int = w.placements[axis].dim  # type: ignore[attr-defined]
    return dim % w.ndim


def wire_of(w: DTensor) -> Wire:
    """Between the ranks that hold the shards of one copy of ``w``; none for a replica."""
    axis = _axis(w)
    group = None if axis is None else w.device_mesh.get_group(axis)
    return Wire(group, w.to_local().device)
