"""Collectives on NumPy arrays: their bytes counted, their failures explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from weightshare.certified import Info


@dataclass
class DistributedInfo(Info):
    """How a call across ranks was answered.

    ``weights`` is the length of the global vector, ``unresolved`` the share of it that was exchanged,
    ``bytes_exchanged`` what each rank receives: the results of all collectives of the call, with padding.
    """

    weights: int = 0
    ranks: int = 1
    bytes_exchanged: int = 0


@dataclass
class Meter:
    """Bytes received by all calls within a block."""

    bytes: int = 0


_meters: ContextVar[tuple[Meter, ...]] = ContextVar("meters", default=())


@contextmanager
def metered() -> Iterator[Meter]:
    """Add up what the calls within the block exchange, whoever makes them.

    >>> with metered() as meter:
    ...     pass
    >>> meter.bytes
    0
    """
    meter = Meter()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


class Wire:
    """The collectives of one call on one process group (None: this process alone, nothing is sent).

    Arrays travel as tensors on ``device``, which has to be one that the group's backend serves.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._group, self._device = group, device
        self.rank = 0 if group is None else dist.get_rank(group)
        self.ranks = 1 if group is None else dist.get_world_size(group)
        self.bytes = 0

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, device: torch.device) -> Wire:
        """The wire of a group that this rank is in; None stands for the default group."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "there is no process group: call torch.distributed.init_process_group() first; "
                "for a tensor of one process use weightshare.prox_"
            )
        wire = cls(dist.group.WORLD if group is None else group, device)
        if wire.rank < 0:
            raise ValueError("this rank is not in group; only its members may call")
        return wire

    def total(self, values: NDArray[Any], what: str) -> NDArray[Any]:
        """The sum over all ranks of an integer array; the same on all of them."""
        return self._reduce(values, dist.ReduceOp.SUM, what)

    def any(self, flags: NDArray[np.bool_], what: str) -> NDArray[np.bool_]:
        """Which flags are set on some rank."""
        # The largest byte: not every backend has an OR.
        found: NDArray[np.bool_] = self._reduce(flags.view(np.uint8), dist.ReduceOp.MAX, what).view(np.bool_)
        return found

    def _reduce(self, values: NDArray[Any], operation: Any, what: str) -> NDArray[Any]:
        if self.ranks == 1:
            return values
        with self.explained(what):
            moved = torch.from_numpy(values.copy()).to(self._device)
            dist.all_reduce(moved, operation, group=self._group)
            result: NDArray[Any] = moved.cpu().numpy()
        self.count(result.nbytes)
        return result

    def rows(self, row: Sequence[int], what: str) -> NDArray[np.int64]:
        """A row of integers from every rank."""
        mine = np.asarray(row, np.int64)
        return self.gather(mine, [mine.size] * self.ranks, what).reshape(self.ranks, -1)

    def gather(self, part: NDArray[Any], sizes: Sequence[int], what: str) -> NDArray[Any]:
        """The parts of all ranks, one after another; ``sizes`` are their lengths, known to all."""
        if self.ranks == 1:
            return part
        longest = max(sizes) * part.itemsize
        padded = np.zeros(longest, np.uint8)
        padded[: part.nbytes] = part.view(np.uint8)
        with self.explained(what):
            sent = torch.from_numpy(padded).to(self._device)
            received = [torch.empty_like(sent) for _ in range(self.ranks)]
            dist.all_gather(received, sent, group=self._group)
            parts = [r[: n * part.itemsize].cpu().numpy() for r, n in zip(received, sizes)]
        self.count(longest * self.ranks)
        joined: NDArray[Any] = np.concatenate(parts).view(part.dtype)
        return joined

    def count(self, received: int) -> None:
        """Account for the result of a collective."""
        self.bytes += received
        for meter in _meters.get():
            meter.bytes += received

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn the failure of a collective (a time-out, a lost connection) into what to do about it."""
        try:
            yield
        except RuntimeError as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeError(
                f"the prox across ranks did not finish {what} on rank {self.rank} of {self.ranks}: {first}. "
                f"Some rank has failed, or has not made this call: look for the first error among the "
                f"ranks, and let every rank of the group make the same calls in the same order, also where "
                f"its shard is empty. If a rank is merely slow, raise the timeout of init_process_group(). "
                f"This call has not changed the weights of this rank"
            ) from error
