"""How many patterns of a tensor occur how often, and which occur often enough.

A list of all patterns with their counts can take three times the memory of the tensor. Which of them
belong into a codebook is told by the counts alone; so patterns are listed only when that is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightshare.compress import kernels
from weightshare.compress.codebook import MANY, Distinct, counted
from weightshare.compress.packing import Bits

_SHORT = 1 << 12  # counts below this have a place each in a histogram
_SHARE = 8  # a list of distinct patterns has at most one for so many weights: otherwise all are sorted


@dataclass(frozen=True)
class Tally:
    """``patterns[i]`` different patterns occur ``counts[i]`` times; counts are ascending, each there once.

    >>> tally = Tally.of(np.array([7, 7, 3, 5], np.uint32))
    >>> tally.counts, tally.patterns, tally.at_least(2)
    (array([1, 2]), array([2, 1]), Distinct(values=array([7], dtype=uint32), counts=array([2])))
    """

    counts: NDArray[np.int64]
    patterns: NDArray[np.int64]
    source: Distinct | Bits
    """The distinct patterns; or, where they are many, all patterns in order."""

    @classmethod
    def of(cls, bits: Bits) -> Tally:
        """Of these patterns. Takes up to their memory, and holds it."""
        found = counted(bits, max(min(MANY, bits.size // _SHARE), 1 << 16))
        if found is not None:
            return cls(*np.unique(found.counts, return_counts=True), found)
        ordered = np.sort(bits)
        histogram, long = np.zeros(_SHORT, np.int64), np.empty(bits.size // _SHORT + 1, np.int64)
        number = kernels.count_lengths(ordered, histogram, long)
        short = np.flatnonzero(histogram)
        counts, patterns = np.unique(long[:number], return_counts=True)
        return cls(np.append(short, counts), np.append(histogram[short], patterns), ordered)

    def at_least(self, least: int) -> Distinct:
        """The patterns that occur so often."""
        if isinstance(self.source, Distinct):
            kept = self.source.counts >= least
            return Distinct(self.source.values[kept], self.source.counts[kept])
        number = int(self.patterns[self.counts >= least].sum())
        found = Distinct(np.empty(number, self.source.dtype), np.empty(number, np.int64))
        kernels.fill_runs(self.source, least, found.values, found.counts)
        return found
