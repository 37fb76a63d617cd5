"""Zstandard over indices of 1, 2, 4, 8, 16 or 32 bits: for repeats that counts do not show."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightshare.compress.coders import chunks
from weightshare.compress.coders.coded import Coded, Counts
from weightshare.compress.extras import library
from weightshare.compress.packing import Bits, Bytes, Indices, bits_for, pack, packed_size, take
from weightshare.kernels.threads import run

name = "zstd"
PARTS = {"indices": "U8"}
SETTINGS = frozenset({"bits", "chunk"})

LEVEL = 3
_CHUNK = 1 << 20  # indices
_WINDOW = 1 << 27  # bytes that a frame may make a reader hold: what the library's highest levels ask for


def aligned_bits(distinct: int) -> int:
    """Bits of an index, rounded up to a power of two, so that what repeats does so in whole bytes."""
    return 1 << max(bits_for(distinct) - 1, 0).bit_length()


def cost(counts: Counts) -> float:
    """Nobody knows before it has been tried."""
    return math.nan if 2 <= counts.size <= 1 << 32 else math.inf


def encode(indices: Indices, counts: Counts) -> Coded:
    """One frame for each chunk."""
    bits = aligned_bits(counts.size)
    starts = range(0, indices.size, _CHUNK)
    frames: list[Bytes] = [np.empty(0, np.uint8)] * len(starts)

    def work(number: int, start: int) -> None:
        frames[number] = compressed(pack(indices[start : start + _CHUNK], bits, threads=1))

    run([partial(work, *task) for task in enumerate(starts)], torch.get_num_threads())
    return Coded({"bits": bits, "chunk": _CHUNK}, {"indices": chunks.join(frames)})


def check(coded: Coded, count: int, distinct: int) -> None:
    """Every frame must say that it holds what its chunk needs."""
    bits, chunk = coded.settings["bits"], coded.settings["chunk"]
    if bits != aligned_bits(distinct) or distinct < 2:
        raise ValueError(
            f"indices into {distinct} values have {aligned_bits(distinct)} bits here, not {bits}"
        )
    payload = coded.parts["indices"]
    edges = chunks.bounds(payload, count, chunk)
    for number in range(edges.size - 1):
        size = packed_size(min(chunk, count - number * chunk), bits)
        _check_frame(payload[edges[number] : edges[number + 1]], size, f"chunk {number}")


def decode(coded: Coded, values: Bits, count: int, start: int, out: Bits) -> None:
    """Decompress, unpack, look up."""
    payload, bits, chunk = coded.parts["indices"], coded.settings["bits"], coded.settings["chunk"]
    edges = chunks.bounds(payload, count, chunk)

    def work(number: int, into: Bits) -> None:
        size = packed_size(into.size, bits)
        plain = decompressed(payload[edges[number] : edges[number + 1]], size, f"chunk {number}")
        take(plain, bits, values, into.size, out=into, threads=1)

    chunks.decode_each(work, count, chunk, start, out)


def compressed(plain: NDArray[Any]) -> Bytes:
    """One frame."""
    frame = library("zstandard", "entropy coding").ZstdCompressor(level=LEVEL).compress(plain.data)
    return np.frombuffer(frame, np.uint8)


def _check_frame(frame: Bytes, size: int, what: str) -> None:
    zstandard = library("zstandard", "reading this file")
    try:
        told = zstandard.get_frame_parameters(frame.data).content_size
    except zstandard.ZstdError as error:
        raise ValueError(f"{what} is no Zstandard frame ({error})") from None
    if told != size:
        raise ValueError(f"{what} says it holds {told} bytes, where {size} are needed")


def decompressed(frame: Bytes, size: int, what: str) -> Bytes:
    """What a frame holds: ``size`` bytes, or ``ValueError``. A frame cannot make it allocate more."""
    zstandard = library("zstandard", "reading this file")
    _check_frame(frame, size, what)
    try:
        plain = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompress(
            frame.data, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"{what} is broken ({error})") from None
    if len(plain) != size:
        raise ValueError(f"{what} holds {len(plain)} bytes, where {size} are needed")
    return np.frombuffer(bytearray(plain), np.uint8)


def squeezed_size(plain: Bytes) -> int:
    """About what :func:`squeeze` makes of small numbers: their entropy and a little."""
    counts = np.bincount(plain)
    share = counts[counts > 0] / plain.size
    return min(plain.size, int(-(share * np.log2(share)).sum() * plain.size / 8 * 1.03) + 40)


def squeeze(plain: Bytes) -> Bytes:
    """A frame of it where that is shorter, else itself."""
    frame = compressed(plain)
    return frame if frame.size < plain.size else plain


def unsqueeze(stored: Bytes, size: int) -> Bytes:
    """The way back."""
    if stored.size > size:
        raise ValueError(f"{stored.size} frequencies for {size} values")
    return stored if stored.size == size else decompressed(stored, size, "the table of frequencies")
