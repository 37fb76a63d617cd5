"""The vectors a rule works on, as views of the parameters, and the prox of each of them in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from weightshare import checks, distributed
from weightshare.certified import prox_array
from weightshare.prox import prox_

Per = str | int
Pieces = list[tuple[Tensor, int | None]]

PER = ("tensor", "row", "column", "group")

_one_thread: ContextVar[bool] = ContextVar("one_thread", default=False)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Within the block the calling thread solves vectors alone: there are others, at work on others."""
    token = _one_thread.set(True)
    try:
        yield
    finally:
        _one_thread.reset(token)


def check_per(per: Per) -> Per:
    """Accept one of :data:`PER` or the length of a block."""
    if isinstance(per, int) and not isinstance(per, bool):
        if per < 2:
            raise ValueError(
                f"per must be a block of at least 2 weights, got {per}; one weight has nothing to share"
            )
        return per
    try:
        return checks.choice("per", per, PER)
    except ValueError as error:
        raise ValueError(f"{error}, or an int: the length of a block") from None


def check_shape(name: str, tensor: Tensor, per: Per) -> None:
    """Raise if a tensor has no rows or columns to speak of."""
    if per in ("row", "column") and tensor.ndim < 2:
        raise ValueError(
            f"per={per!r} needs at least 2 dimensions, but {name!r} has shape {tuple(tensor.shape)}; "
            f'give it a rule of its own with per="tensor"'
        )


def pieces(tensor: Tensor, per: Per) -> Pieces:
    """The vectors of one tensor: pairs of a tensor and the dimension along which its vectors lie.

    A row is everything that belongs to one index of the first dimension (a neuron of a Linear, an output
    channel of a Conv), a column runs across it. Views wherever ``tensor`` is contiguous.

    >>> import torch
    >>> [(tuple(piece.shape), dim) for piece, dim in pieces(torch.zeros(3, 5), per=4)]
    [((3, 4), 1), ((3,), None)]
    """
    if per == "row":
        return [(tensor.flatten(1), 1)]
    if per == "column":
        return [(tensor.flatten(1), 0)]
    if isinstance(per, int):
        flat = tensor.reshape(-1)
        whole = flat.numel() // per * per
        blocks: Pieces = [(flat[:whole].view(-1, per), 1), (flat[whole:], None)]
        return [(piece, dim) for piece, dim in blocks if piece.numel()]
    return [(tensor, None)]


def gathered(tensors: Sequence[Tensor], per: Per) -> Pieces:
    """The vectors of all ``tensors``, to be read; with ``per="group"`` they are one vector together."""
    if per == "group" and len(tensors) > 1:
        return [(torch.cat([t.reshape(-1) for t in tensors]), None)]
    return [piece for t in tensors for piece in pieces(t, per)]


def change_(tensors: Sequence[Tensor], per: Per, change: Callable[[Tensor, int | None], None]) -> None:
    """Call ``change`` on every vector; what it does to them in place arrives in ``tensors``."""
    if any(distributed.is_dtensor(t) for t in tensors):
        keep = (0,) if per == "row" else ()  # what lies along no sharded dimension is whole on its rank
        plain = [distributed.unshard(t, keep) if distributed.is_dtensor(t) else t for t in tensors]
        change_(plain, per, change)
        for tensor, work in zip(tensors, plain):
            if distributed.is_dtensor(tensor):
                distributed.reshard_(tensor, work)
        return
    if per == "group" and len(tensors) > 1:
        joined = gathered(tensors, per)[0][0]
        change(joined, None)
        start = 0
        for tensor in tensors:
            tensor.copy_(joined[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()
        return
    for tensor in tensors:
        # Flattening a tensor that is not contiguous (channels_last, say) gives a copy, not a view.
        work = tensor.contiguous()
        for piece, dim in pieces(work, per):
            change(piece, dim)
        if work is not tensor:
            tensor.copy_(work)


def prox_each_(
    tensors: Sequence[Tensor],
    per: Per,
    *,
    alpha: float,
    beta: float,
    rho: float,
    step: float,
    coupling: str = "scaled",
) -> None:
    """Replace every vector by its prox (Algorithm 2): the one place where training moves weights by R."""
    if per in ("tensor", "group") and any(distributed.is_dtensor(t) for t in tensors):
        for vector in [tensors] if per == "group" else [[t] for t in tensors]:
            distributed.dtensor_prox_(vector, alpha, beta, rho, step=step, coupling=coupling)  # type: ignore[arg-type]
        return

    a, b, scale = (step * alpha, step * beta, 1.0) if coupling == "scaled" else (alpha, beta, step)
    overflows = math.inf in (a, b)

    def change(vector: Tensor, dim: int | None) -> None:
        if dim is None and not overflows and directly(vector):
            _solve_(vector, a, b, scale * (1.0 - rho))
        else:
            prox_(vector, alpha, beta, rho, step=step, coupling=coupling, dim=dim)

    change_(tensors, per, change)


def directly(vector: Tensor) -> bool:
    """Whether the compiled solver can be handed the memory of this vector."""
    plain = type(vector) is Tensor and vector.device.type == "cpu" and vector.is_contiguous()
    return plain and vector.numel() > 0 and vector.dtype in checks.FLOATS and not checks.opaque(vector)


def _solve_(vector: Tensor, alpha: float, beta: float, scale: float) -> None:
    """``prox_`` without its checks and detours, which take longer than to solve 1,000 weights."""
    form = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(vector.dtype)
    memory = (vector if form is None else vector.view(torch.uint16)).numpy().reshape(-1)
    threads = 1 if _one_thread.get() else torch.get_num_threads()
    try:
        prox_array(memory, memory, alpha=alpha, beta=beta, scale=scale, threads=threads, format=form)
    except ValueError:
        checks.finite("w", vector)  # says where
        raise
    torch.autograd.graph.increment_version(vector)
