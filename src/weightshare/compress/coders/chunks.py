"""Payloads in chunks that are decoded one by one, in parallel: lengths first, then the chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightshare.compress.packing import Bits
from weightshare.kernels.threads import run


def join(chunks: list[NDArray[Any]]) -> NDArray[Any]:
    """The chunks' lengths (in elements, as uint32 in little-endian order), then the chunks.

    The list is emptied on the way, so that nothing takes memory twice.
    """
    kind = chunks[0].dtype if chunks else np.dtype(np.uint8)
    lengths = np.array([chunk.size for chunk in chunks], "<u4").view(kind)
    out = np.empty(lengths.size + sum(chunk.size for chunk in chunks), kind)
    out[: lengths.size] = lengths
    end = out.size
    while chunks:
        chunk = chunks.pop()
        out[end - chunk.size : end] = chunk
        end -= chunk.size
    return out


def bounds(payload: NDArray[Any], count: int, chunk: int) -> NDArray[np.int64]:
    """Where each chunk begins and ends in the payload; ``ValueError`` if the lengths do not fit."""
    if chunk <= 0:
        raise ValueError(f"a chunk of {chunk} indices")
    number = -(-count // chunk)
    head = number * (4 // payload.itemsize)
    if head > payload.size:
        raise ValueError(f"{number} chunks of {chunk} indices, but only {payload.nbytes} bytes")
    lengths = payload[:head].view("<u4").astype(np.int64)
    edges = np.concatenate([[head], head + np.cumsum(lengths)])
    if edges[-1] != payload.size:
        raise ValueError(f"the chunks' lengths add up to {edges[-1]}, but there are {payload.size}")
    return edges


def decode_each(
    work: Callable[[int, Bits], None],
    count: int,
    chunk: int,
    start: int,
    out: Bits,
    threads: int | None = None,
    together: int = 1,
) -> None:
    """Call ``work(number, into)`` for every chunk that overlaps ``start`` and what follows, on threads.

    ``into`` has room for the whole chunk: the place in ``out`` itself where the whole is wanted, and then
    also for the next ones, up to ``together`` chunks.
    """
    stop = start + out.size

    def whole(number: int) -> bool:
        return start <= number * chunk and min((number + 1) * chunk, count) <= stop

    def one(number: int, many: int) -> None:
        lo, hi = number * chunk, min((number + many) * chunk, count)
        if whole(number):
            work(number, out[lo - start : hi - start])
        else:
            made = np.empty(hi - lo, out.dtype)
            work(number, made)
            first, last = max(lo, start), min(hi, stop)
            out[first - start : last - start] = made[first - lo : last - lo]

    tasks = []
    number, end = start // chunk, -(-stop // chunk) if out.size else 0
    while number < end:
        many = 1
        while many < together and whole(number) and number + many < end and whole(number + many):
            many += 1
        tasks.append(partial(one, number, many))
        number += many
    run(tasks, threads or torch.get_num_threads())
