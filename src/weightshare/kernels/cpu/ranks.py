"""The slope of R from sorted words (those of :func:`weightshare.kernels.cpu.rows.row_words`)."""

from __future__ import annotations

import numpy as np

from weightshare.kernels.cpu.jit import inline, kernel
from weightshare.kernels.cpu.keys import decode


@kernel
def mean_ranks(words, out):
    """Eq. (9) for rows of sorted words: (2 rank - d - 1) / (d - 1), with the mean rank of equal values."""
    d = words.shape[1]
    for r in range(words.shape[0]):
        begin = 0
        for i in range(1, d + 1):
            if i == d or _value(words[r, i]) != _value(words[r, begin]):
                slope = np.float64(begin + i - d) / (d - 1)
                for t in range(begin, i):
                    out[r, np.int64(words[r, t] & np.uint64(0xFFFFFFFF))] = slope
                begin = i


@inline
def _value(word):
    """-0.0 and 0.0 have different keys, but are equal."""
    return decode(np.int64(word >> np.uint64(32)))
