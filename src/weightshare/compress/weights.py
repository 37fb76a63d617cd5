"""A weight as codebooks and packed indices: one codebook, or one for each of equal stretches (rows, say)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.compress.codebook import distinct, indices
from weightshare.compress.packing import Bits, Bytes, bits_for, pack

MOST_BITS = 16


@dataclass(frozen=True)
class PackedWeight:
    """Codebooks as bit patterns, one a row, and the packed indices of all weights in order."""

    values: Bits
    indices: Bytes

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.values.nbytes + self.indices.nbytes


def bytes_for(count: int, bits: int) -> int:
    """Bytes of ``count`` packed indices: whole groups of eight, so that tensor operations can unpack them."""
    return -(-count // 8) * bits


def pack_weight(patterns: Bits, groups: int, below: int) -> PackedWeight | None:
    """Pack ``groups`` equal stretches of the patterns, if that takes less than ``below`` bytes.

    >>> packed = pack_weight(np.array([7, 7, 3, 3, 9, 9, 9, 9], np.uint32), groups=2, below=100)
    >>> packed.values, packed.indices
    (array([[3, 7],
           [9, 9]], dtype=uint32), array([3], dtype=uint8))
    """
    most = most_values(patterns.size, groups, patterns.itemsize, below)
    if patterns.size == 0 or patterns.size % groups or not most:
        return None
    stretches = patterns.reshape(groups, -1)
    tables = _tables(stretches, most)
    if tables is None:
        return None
    k = max(table.size for table in tables)
    values = np.stack([np.pad(table, (0, k - table.size), mode="edge") for table in tables])
    bits = bits_for(k)
    numbers = np.zeros(-(-patterns.size // 8) * 8, np.uint8 if bits <= 8 else np.uint16)
    for number, stretch, table in zip(_split(numbers, stretches), stretches, tables):
        number[:] = indices(stretch, table)
    return PackedWeight(values, pack(numbers, bits))


def most_values(count: int, groups: int, itemsize: int, below: int) -> int:
    """The most values a codebook may have for everything to take less than ``below`` bytes; 0 if none may.

    >>> most_values(count=1000, groups=1, itemsize=4, below=4000)
    687
    """
    best = 0
    for bits in range(MOST_BITS + 1):
        fit = (below - 1 - bytes_for(count, bits)) // (groups * itemsize)
        if bits_for(min(fit, 1 << bits)) == bits and fit > 0:
            best = min(fit, 1 << bits)
    return best


def _tables(stretches: NDArray[Any], most: int) -> list[Bits] | None:
    tables = []
    for stretch in stretches:
        found = distinct(stretch, most)
        if found is None:
            return None
        tables.append(found.values)
    return tables


def _split(numbers: Bits, stretches: NDArray[Any]) -> Iterator[Bits]:
    length = stretches.shape[1]
    return (numbers[i * length : (i + 1) * length] for i in range(len(stretches)))
