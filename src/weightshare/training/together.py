"""The units of one step, moved: long vectors one after another, the others side by side, a thread for each.

A long vector is solved by all threads at once. For shorter ones waking threads costs what they save, and part
of the work (planning) is done by one thread anyway; whole tensors, each on one thread, leave no thread idle.
What comes out is the same: no vector depends on another, and none of its bits on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from weightshare.kernels.threads import run
from weightshare.training.unit import Unit
from weightshare.training.vectors import on_one_thread

SHORTEST = 1 << 14
"""Weights of a vector for whose sake a thread is worth waking; those of less are solved in no time."""
SHARE = 2
"""A vector is long if it is more than one part in ``SHARE * threads`` of what is left to do."""

Sized = tuple[Unit, float]


@torch.no_grad()
def after_(units: Sequence[Sized], step: int) -> None:
    """Let every unit move its weights, with its step size.

    >>> after_([], step=0)
    """
    threads = torch.get_num_threads()
    beside = _beside(units, step, threads)
    chosen = {id(unit) for unit, _ in beside}
    for unit, size in units:  # in this order on all ranks, for some are exchanges between them
        if id(unit) not in chosen:
            unit.after_(step, size)
    run([partial(_alone, unit, step, size) for unit, size in beside], threads)


def _alone(unit: Unit, step: int, size: float) -> None:
    """In a thread of its own, which has its own modes."""
    with torch.no_grad(), on_one_thread():
        unit.after_(step, size)


def _beside(units: Sequence[Sized], step: int, threads: int) -> list[Sized]:
    """The units to be moved side by side, longest first."""
    if threads == 1:
        return []
    able = [one for one in units if one[0].stands_alone(step) and _length(one) >= SHORTEST]
    able.sort(key=_length, reverse=True)
    left = sum(map(_length, able))
    while able and _length(able[0]) * SHARE * threads > left:
        left -= _length(able.pop(0))
    return able


def _length(one: Sized) -> int:
    return one[0].members[0].tensor.numel()
