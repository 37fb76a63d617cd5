"""``prox_`` of one vector in shards: agree on the call, choose the route, solve."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from weightshare import checks
from weightshare.certified import prox_array
from weightshare.certified.api import LARGEST_C, SMALL, SMALL_HALF
from weightshare.certified.problem import Problem
from weightshare.distributed import half, single
from weightshare.distributed.wire import DistributedInfo, Wire
from weightshare.prox import Call, Number

FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def prox_(
    local: Tensor | Sequence[Tensor],
    alpha: Number,
    beta: Number = 0.0,
    rho: Number = 0.0,
    *,
    step: Number = 1.0,
    coupling: str = "scaled",
    group: ProcessGroup | None = None,
) -> DistributedInfo:
    """:func:`weightshare.prox_` of the vector whose pieces are the ``local`` tensors of all ranks of a group.

    Every rank overwrites its piece. The result is bitwise that of one process with the whole vector,
    however the vector is cut up. All ranks of the group must call, with the same coefficients, also those
    whose piece is empty.

    Args:
        local: this rank's piece: a tensor of any shape (it may be empty), or several, which together are
            its piece (as with ``per="group"``).
        alpha, beta, rho, step, coupling: as for :func:`weightshare.prox`.
        group: the process group; the default one if left out.

    Weights that are not finite, or arguments that differ between the ranks, raise on all ranks, before any
    weight is written. A rank that never calls makes the others raise ``RuntimeError`` when the group's
    timeout is over. Returns how the call was answered, with ``bytes_exchanged`` and ``unresolved``.
    """
    tensors = [local] if isinstance(local, Tensor) else list(local)
    device = next((t.device for t in tensors if isinstance(t, Tensor)), torch.device("cpu"))
    wire = Wire.of(group, device if device.type not in ("mps", "meta") else torch.device("cpu"))
    return solve_(tensors, alpha, beta, rho, step, coupling, wire)


def solve_(
    tensors: Sequence[Tensor],
    alpha: Number,
    beta: Number,
    rho: Number,
    step: Number,
    coupling: str,
    wire: Wire,
) -> DistributedInfo:
    """Check here, agree with the others, solve, write."""
    try:
        call = Call.of(_joined(tensors), alpha, beta, rho, step, coupling, None, "auto", None)
        if call.traced:
            raise RuntimeError(
                "prox_ is not differentiable and cannot be traced: call it under torch.no_grad(), outside of "
                "torch.compile and vmap"
            )
    except (TypeError, ValueError, RuntimeError):
        agree(wire, None)  # or the others would wait for this rank
        raise
    scalars = [float(coefficient[0]) for coefficient in call.coefficients]
    sizes = agree(wire, call.rows.values, scalars)
    # The memory of the weights themselves, or a copy of them; results can be written there in either case.
    values = call.rows.values.detach().reshape(-1).cpu().contiguous()
    info = _solve(values, scalars, wire, sizes)
    info.bytes_exchanged, info.ranks, info.weights = wire.bytes, wire.ranks, sum(sizes)
    _write(values, tensors)
    return info


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """This rank's piece as one tensor."""
    if not tensors:
        raise ValueError("local must be at least one tensor; give an empty one where a rank holds nothing")
    for tensor in tensors:
        checks.float_tensor("local", tensor)
        if hasattr(tensor, "device_mesh"):
            raise TypeError("local must be plain tensors, got a DTensor; use dtensor_prox_")
    if len({(t.dtype, t.device) for t in tensors}) > 1:
        kinds = ", ".join(f"{t.dtype} on {t.device}" for t in tensors)
        raise ValueError(f"the tensors of one vector must have one dtype and device, got {kinds}")
    return tensors[0] if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])


def agree(wire: Wire, values: Tensor | None, scalars: Sequence[float] = (0.0, 0.0, 0.0)) -> list[int]:
    """The sizes of all shards; raises the same error on all ranks if they cannot go on together.

    A rank that has refused its arguments (``values`` is None) makes the others raise, and returns.
    """
    row = [1, 0, 0, 0, 0, 0, 0]
    if values is not None:
        dtype = checks.FLOATS.index(values.dtype)
        row = [0, values.numel(), _bad(values), dtype, *struct.unpack("3q", struct.pack("3d", *scalars))]
    table = wire.rows(row, "the agreement on the call")
    if values is None:
        return []
    if table[:, 0].any():
        names = ", ".join(map(str, np.flatnonzero(table[:, 0])))
        raise RuntimeError(f"rank {names} has refused its arguments; its own error tells why")
    if (table[:, 3] != table[0, 3]).any():
        kinds = ", ".join(str(checks.FLOATS[k]) for k in table[:, 3])
        raise ValueError(f"all ranks must hold weights of one dtype, got {kinds} (in order of ranks)")
    for k, name in enumerate(("step * alpha", "step * beta", "1 - rho"), 4):
        if (table[:, k] != table[0, k]).any():
            given = ", ".join(f"{x!r}" for x in table[:, k].copy().view(np.float64).tolist())
            raise ValueError(
                f"all ranks must give the same coefficients, got {name} = {given} (in order of ranks)"
            )
    if table[:, 2].any():
        found = ", ".join(
            f"rank {r} has {bad} NaN or infinite entries of {n}"
            for r, (n, bad) in enumerate(table[:, 1:3])
            if bad
        )
        raise ValueError(
            f"w must be finite on all ranks: {found}; remove them first (no rank has written anything)"
        )
    sizes: list[int] = table[:, 1].tolist()
    return sizes


def _bad(values: Tensor) -> int:
    """How many entries are not finite."""
    if not values.numel():
        return 0
    low, high = torch.aminmax(values)  # nan passes through
    if bool(torch.isfinite(low) & torch.isfinite(high)):
        return 0
    return int((~torch.isfinite(values)).sum())


def _solve(values: Tensor, scalars: Sequence[float], wire: Wire, sizes: Sequence[int]) -> DistributedInfo:
    """Overwrite ``values``, by the route of ``certified.prox_array`` for the length of the whole vector."""
    alpha, beta, scale = scalars
    d, threads = sum(sizes), torch.get_num_threads()
    form = FORMATS.get(values.dtype)
    w = values.view(torch.uint16).numpy() if form else values.numpy()
    info = DistributedInfo("empty")
    c = alpha / (d - 1) if d > 1 else 0.0
    problem = Problem(d, min(c, LARGEST_C), beta, scale, max(1, threads))
    if d == 0:
        return info
    if form is None and c == 0.0:
        info.route = "elementwise"
        prox_array(w, w, alpha=0.0, beta=beta, scale=scale, threads=threads)
    elif form is not None and d > SMALL_HALF:
        half.solve(w, w, problem, form, wire, info)
    elif values.dtype == torch.float32 and d > SMALL:
        single.solve(w.view(np.uint32), w, problem, wire, sizes, info)
    else:
        info.route, info.unresolved = "gathered", 1.0
        whole = wire.gather(w, sizes, "the exchange of the weights")
        answer = prox_array(whole, alpha=alpha, beta=beta, scale=scale, threads=threads, format=form)
        begin = sum(sizes[: wire.rank])
        w[...] = answer.out[begin : begin + w.size]
    return info


def _write(values: Tensor, tensors: Sequence[Tensor]) -> None:
    """Put the results where the weights are, unless they are there already."""
    start = 0
    for tensor in tensors:
        part = values[start : start + tensor.numel()]
        start += tensor.numel()
        if part.data_ptr() != tensor.data_ptr():
            tensor.copy_(part.view(tensor.shape))
        elif tensor.numel():
            torch.autograd.graph.increment_version(tensor)
