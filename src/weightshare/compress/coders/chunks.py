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
    """The chunks' lengths (in elements, as uint32 in little-endian order), then the chunks."""
    kind = chunks[0].dtype if chunks else np.dtype(np.uint8)
    lengths = np.array([chunk.size for chunk in chunks], "<u4").view(kind)
    return np.concatenate([lengths, *chunks])


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
) -> None:
    """Call ``work(number, into)`` for every chunk that overlaps ``start`` and what follows, on threads.

    ``into`` has room for the whole chunk: the place in ``out`` itself where the whole is wanted.
    """
    stop = start + out.size

    def one(number: int) -> None:
        lo, hi = number * chunk, min((number + 1) * chunk, count)
        if start <= lo and hi <= stop:
            work(number, out[lo - start : hi - start])
        else:
            whole = np.empty(hi - lo, out.dtype)
            work(number, whole)
            first, last = max(lo, start), min(hi, stop)
            out[first - start : last - start] = whole[first - lo : last - lo]

    numbers = range(start // chunk, -(-stop // chunk)) if out.size else range(0)
    run([partial(one, number) for number in numbers], threads or torch.get_num_threads())
