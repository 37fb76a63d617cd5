"""A tensor as its distinct bit patterns and an index per weight; nothing is rounded, nothing is equated.

Patterns are compared as unsigned integers, so that -0.0 is not 0.0 and every NaN is itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weightshare.compress import kernels
from weightshare.compress.packing import Bits, bits_for, index_type, slices
from weightshare.kernels.threads import run

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PIECE = 1 << 20  # weights that are sorted at a time: extra memory stays small, and in cache
MANY = 1 << 20  # distinct patterns, from which on merging costs more than one large sort


@dataclass(frozen=True)
class Distinct:
    """The distinct patterns, ascending as unsigned integers, and how often each occurs."""

    values: Bits
    counts: NDArray[np.int64]

    @property
    def bits(self) -> int:
        """Bits of an index into the values: ceil(log2 k)."""
        return bits_for(self.values.size)

    @property
    def entropy(self) -> float:
        """Bits per weight of the best code for the indices as they are distributed: -sum p log2 p."""
        if not self.counts.size:
            return 0.0
        share = self.counts / self.counts.sum()
        return float(-(share * np.log2(share)).sum()) + 0.0


def patterns(tensor: Tensor) -> Bits:
    """The bit patterns of a tensor of any dtype and layout, in its logical order, flat; a view if it can be.

    >>> patterns(torch.tensor([0.0, -0.0]))
    array([         0, 2147483648], dtype=uint32)
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if plain.element_size() not in _UNSIGNED:
        raise TypeError(
            f"tensors of dtype {tensor.dtype} have no codebook: {plain.element_size()} bytes each"
        )
    return plain.view(torch.uint8).numpy().view(_UNSIGNED[plain.element_size()])


def tensor_of(bits: Bits, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor of that dtype and shape whose patterns are ``bits``; it shares their memory.

    >>> tensor_of(np.array([0x3F800000], np.uint32), torch.float32, ())
    tensor(1.)
    """
    return torch.from_numpy(bits.view(np.uint8)).view(dtype).reshape(shape)


def distinct(bits: Bits, most: int | None = None, threads: int | None = None) -> Distinct | None:
    """The distinct patterns and their counts; ``None`` as soon as there are more than ``most`` of them.

    >>> distinct(np.array([7, 7, 3], np.uint32))
    Distinct(values=array([3, 7], dtype=uint32), counts=array([1, 2]))
    """
    few = MANY if most is None else min(most, MANY)
    found = counted(bits, few, threads)
    if found is None and (most is None or most > MANY):
        found = _runs(np.sort(bits), most)
    return found


def counted(bits: Bits, most: int, threads: int | None = None) -> Distinct | None:
    """The same for few distinct patterns: extra memory is that of ``most`` of them, and of some pieces."""
    threads = threads or torch.get_num_threads()
    if bits.itemsize > 2:
        return _count_pieces(bits, most, threads)
    found = _count_small(bits, threads)
    return found if found.values.size <= most else None


def _count_small(bits: Bits, threads: int) -> Distinct:
    """There are at most 65,536 patterns: a counter for each."""
    counts = np.zeros((threads, 1 << (8 * bits.itemsize)), np.int64)
    size = -(-bits.size // threads)
    run(
        [partial(kernels.count_small, bits[i * size : (i + 1) * size], counts[i]) for i in range(threads)],
        threads,
    )
    total = counts.sum(axis=0)
    used = np.flatnonzero(total)
    return Distinct(used.astype(bits.dtype), total[used])


def _count_pieces(bits: Bits, most: int, threads: int) -> Distinct | None:
    """Sort piece by piece and keep what is distinct."""
    total: Distinct | None = Distinct(np.empty(0, bits.dtype), np.empty(0, np.int64))
    step = threads * _PIECE
    for start in range(0, bits.size, step):
        pieces = [bits[at : at + _PIECE] for at in range(start, min(start + step, bits.size), _PIECE)]
        found: list[Distinct | None] = [None] * len(pieces)

        def work(i: int, pieces: list[Bits] = pieces, found: list[Distinct | None] = found) -> None:
            found[i] = _runs(np.sort(pieces[i]), most)

        run([partial(work, i) for i in range(len(pieces))], threads)
        while found and total is not None:
            part = found.pop(0)
            total = None if part is None else _union(total, part)
        if total is None or total.values.size > most:
            return None
    return total


def _runs(ordered: Bits, most: int | None) -> Distinct | None:
    """Values and counts of patterns in order; nothing is allocated where there are more than ``most``."""
    number = kernels.count_runs(ordered)
    if most is not None and number > most:
        return None
    found = Distinct(np.empty(number, ordered.dtype), np.empty(number, np.int64))
    kernels.fill_runs(ordered, 1, found.values, found.counts)
    return found


def _union(a: Distinct, b: Distinct) -> Distinct:
    """All values of both, with counts added up."""
    if not a.values.size:
        return b
    values = np.empty(a.values.size + b.values.size, b.values.dtype)
    counts = np.empty(values.size, np.int64)
    number = kernels.merge_runs(a.values, a.counts, b.values, b.counts, values, counts)
    return Distinct(values[:number], counts[:number])


class Numbers:
    """The number of each pattern among some values, k for one that is not among the k values.

    Read like an array, in slices; nothing but a table of the values is held.

    >>> numbers = Numbers(np.array([7, 5, 3], np.uint32), np.array([3, 7], np.uint32))
    >>> numbers.size, numbers[1:]
    (3, array([2, 0], dtype=uint8))
    """

    def __init__(self, bits: Bits, values: Bits, threads: int | None = None) -> None:
        self.bits, self.values, self.threads = bits, values, threads
        self.size = bits.size
        self.dtype = np.dtype(index_type(bits_for(values.size + 1)))
        room = bits_for(max(2 * values.size, 4))
        self._shift = 64 - room
        self._slots = np.zeros(1 << room, np.int32 if values.size < 1 << 31 else np.int64)
        kernels.fill_slots(values, self._slots, self._shift)

    def __getitem__(self, part: slice) -> Bits:
        bits = self.bits[part]
        out = np.empty(bits.size, self.dtype)
        tasks = [
            partial(kernels.find_all, bits[lo:hi], self.values, self._slots, self._shift, out[lo:hi])
            for lo, hi in slices(bits.size)
        ]
        run(tasks, self.threads or torch.get_num_threads())
        return out


def indices(bits: Bits, values: Bits, threads: int | None = None) -> Bits:
    """The number of each pattern among ``values``, in the smallest unsigned type.

    >>> indices(np.array([7, 7, 3], np.uint32), np.array([3, 7], np.uint32))
    array([1, 1, 0], dtype=uint8)
    """
    found = Numbers(bits, values, threads)[:]
    missing = int((found == values.size).sum())
    if missing:
        raise ValueError(f"{missing} of {bits.size} patterns are not among the {values.size} values")
    return found.astype(index_type(bits_for(values.size)), copy=False)


def lookup(numbers: Bits, values: Bits, out: Bits | None = None, threads: int | None = None) -> Bits:
    """``values[numbers]``, with ``ValueError`` for a number that is no place in ``values``.

    >>> lookup(np.array([1, 1, 0], np.uint8), np.array([3, 7], np.uint32))
    array([7, 7, 3], dtype=uint32)
    """
    out = np.empty(numbers.size, values.dtype) if out is None else out
    most = np.full(max(len(slices(numbers.size)), 1), -1, np.int64)

    def work(number: int, lo: int, hi: int) -> None:
        most[number] = kernels.gather(numbers[lo:hi], values, out[lo:hi])

    tasks = [partial(work, number, lo, hi) for number, (lo, hi) in enumerate(slices(numbers.size))]
    run(tasks, threads or torch.get_num_threads())
    if most.max() >= values.size:
        raise ValueError(f"index {most.max()} is not a place in a codebook of {values.size} values")
    return out
