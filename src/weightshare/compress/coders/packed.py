"""Indices of ceil(log2 k) bits each: any slice can be read where it lies."""

from __future__ import annotations

import math

from weightshare.compress.coders.coded import Coded, Counts
from weightshare.compress.packing import Bits, Indices, bits_for, pack, packed_size, take

name = "packed"
PARTS = {"indices": "U8"}
SETTINGS = frozenset({"bits"})


def cost(counts: Counts) -> float:
    """Exactly what it takes; up to 2^32 values."""
    bits = bits_for(counts.size)
    return packed_size(int(counts.sum()), bits) if bits <= 32 else math.inf


def encode(indices: Indices, counts: Counts) -> Coded:
    """One stream of bits."""
    bits = bits_for(counts.size)
    return Coded({"bits": bits}, {"indices": pack(indices, bits)})


def check(coded: Coded, count: int, distinct: int) -> None:
    """The bits must be those of the codebook, the bytes those of the count."""
    bits, size = coded.settings["bits"], coded.parts["indices"].size
    if bits != bits_for(distinct):
        raise ValueError(f"indices into {distinct} values have {bits_for(distinct)} bits, not {bits}")
    if size != packed_size(count, bits):
        raise ValueError(
            f"{count} indices of {bits} bits are {packed_size(count, bits)} bytes, but there are {size}"
        )


def decode(coded: Coded, values: Bits, count: int, start: int, out: Bits) -> None:
    """Unpack and look up."""
    take(coded.parts["indices"], coded.settings["bits"], values, out.size, start, out)
