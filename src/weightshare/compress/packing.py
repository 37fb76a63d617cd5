"""Indices of a few bits each as bytes, and back: whole, or any slice of them where they lie."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from weightshare.compress import kernels
from weightshare.kernels.threads import run, split

Bits = NDArray[Any]  # unsigned integers of 8, 16, 32 or 64 bits
Bytes = NDArray[np.uint8]


class Indices(Protocol):
    """Numbers below k, read in slices like an array: one, or what makes them when they are asked for."""

    @property
    def size(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, part: slice, /) -> Bits: ...


MOST_BITS = 32
_SLICE = 1 << 16  # indices: a multiple of 8, so that every slice begins with a byte of its own


def bits_for(count: int) -> int:
    """How many bits tell ``count`` things apart: ceil(log2 count), and 0 for one thing.

    >>> [bits_for(count) for count in (1, 2, 3, 4, 5, 256, 257)]
    [0, 1, 2, 2, 3, 8, 9]
    """
    return max(count - 1, 0).bit_length()


def packed_size(count: int, bits: int) -> int:
    """Bytes of ``count`` indices of ``bits`` bits."""
    return (count * bits + 7) // 8


def index_type(bits: int) -> Any:
    """The smallest unsigned NumPy type that holds ``bits`` bits."""
    if not 0 <= bits <= MOST_BITS:
        raise ValueError(f"bits must be in 0..{MOST_BITS}, got {bits}")
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32


def pack(indices: Indices, bits: int, threads: int | None = None) -> Bytes:
    """Indices (each below ``2 ** bits``) as a stream of bits, least significant first.

    The same as ``numpy.packbits`` of the indices' bits with ``bitorder="little"``.

    >>> pack(np.array([1, 2, 3, 0, 1], np.uint8), bits=2)
    array([57,  1], dtype=uint8)
    """
    index_type(bits)
    out = np.zeros(packed_size(indices.size, bits), np.uint8)
    if bits:

        def work(lo: int, hi: int) -> None:
            kernels.pack_slice(indices[lo:hi], bits, out[lo * bits // 8 : packed_size(hi, bits)])

        run([partial(work, lo, hi) for lo, hi in slices(indices.size)], threads or torch.get_num_threads())
    return out


def unpack(
    packed: Bytes, bits: int, count: int, start: int = 0, out: Bits | None = None, threads: int | None = None
) -> Bits:
    """``count`` indices from number ``start`` on, in the smallest unsigned type (or in ``out``).

    >>> unpack(np.array([57, 1], np.uint8), bits=2, count=3, start=2)
    array([3, 0, 1], dtype=uint8)
    """
    out = np.empty(count, index_type(bits)) if out is None else out
    _within(packed, bits, start, count)
    if not bits:
        out[:] = 0
        return out
    tasks = [partial(kernels.unpack_slice, packed, bits, start + lo, out[lo:hi]) for lo, hi in slices(count)]
    run(tasks, threads or torch.get_num_threads())
    return out


def take(
    packed: Bytes,
    bits: int,
    values: Bits,
    count: int,
    start: int = 0,
    out: Bits | None = None,
    threads: int | None = None,
) -> Bits:
    """``values[index]`` for ``count`` packed indices from number ``start`` on.

    Raises ``ValueError`` if one of them is not a place in ``values``; ``out`` is then spoilt.

    >>> take(np.array([57, 1], np.uint8), 2, np.array([10, 11, 12, 13], np.uint32), count=5)
    array([11, 12, 13, 10, 11], dtype=uint32)
    """
    out = np.empty(count, values.dtype) if out is None else out
    index_type(bits)
    _within(packed, bits, start, count)
    if count and not values.size:
        raise ValueError(f"{count} indices point into no values")
    if not bits:
        out[:] = values[:1]
        return out
    table = np.zeros(1 << bits, values.dtype)  # so that no index can read beyond it
    table[: values.size] = values[: table.size]
    most = np.zeros(max(len(slices(count)), 1), np.int64)

    def work(number: int, lo: int, hi: int) -> None:
        most[number] = kernels.take_slice(packed, bits, start + lo, table, out[lo:hi])

    tasks = [partial(work, number, lo, hi) for number, (lo, hi) in enumerate(slices(count))]
    run(tasks, threads or torch.get_num_threads())
    if most.max() >= values.size and count:
        raise ValueError(f"index {most.max()} is not a place in a codebook of {values.size} values")
    return out


def slices(count: int) -> list[tuple[int, int]]:
    """``range(count)`` in slices for threads, each of which begins at a multiple of 8."""
    return [(lo * _SLICE, min(hi * _SLICE, count)) for lo, hi in split(-(-count // _SLICE), 64)]


def _within(packed: Bytes, bits: int, start: int, count: int) -> None:
    if start < 0 or packed_size(start + count, bits) > packed.size:
        raise ValueError(
            f"indices {start} to {start + count} of {bits} bits are not all in {packed.size} bytes"
        )
