"""Asymmetric numeral systems: indices at their entropy, to a fraction of a percent.

What is stored is what ``constriction.stream.stack.AnsCoder`` writes (words of 32 bits, a state of 64, weights
that add up to 2^24) with the model ``Categorical(weights - 1, perfect=False)``. The library encodes; a
compiled loop decodes the same streams, several at a time and without the GIL.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from weightshare.compress import kernels
from weightshare.compress.coders import chunks
from weightshare.compress.coders.coded import Coded, Counts
from weightshare.compress.coders.zstd import squeeze, squeezed_size, unsqueeze
from weightshare.compress.extras import library
from weightshare.compress.packing import Bits, Indices, bits_for

name = "ans"
PARTS = {"indices": "U32", "frequencies": "U8"}
SETTINGS = frozenset({"chunk"})

PRECISION = 24
MOST = 1 << 20  # values: beyond that, 24 bits tell their frequencies apart too coarsely to gain by it
_CHUNK_BYTES = 1 << 13  # at least, so that a chunk's few bytes of overhead do not count
_LEAST, _LARGEST = 1 << 14, 1 << 24  # indices in a chunk
_BLOCK = 1 << 20  # indices that are coded and checked at a time
_TOGETHER = 4  # chunks that the compiled loop decodes side by side
_STEPS = (1, 4, 8, 16, 32, 64)  # how coarsely frequencies may be told: 8 steps are an octave


def codes_of(counts: Counts) -> NDArray[np.uint8]:
    """Counts rounded to 3 bits of mantissa: code c stands for (8 + c % 8) * 2^(c // 8), relative to others.

    >>> codes_of(np.array([1, 2, 3, 100])).tolist()
    [0, 8, 12, 53]
    """
    shift = max(int(counts.max()).bit_length() - 31, 0)
    x = np.maximum(counts >> shift, 1) << 3
    exponent = np.frexp(x.astype(np.float64))[1] - 4  # x is in [8, 16) * 2^exponent
    mantissa = (x + ((1 << exponent) >> 1)) >> exponent
    codes: NDArray[np.uint8] = (8 * exponent + mantissa - 8).astype(np.uint8)
    return codes


def weights_of(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The weights that stand for the frequencies: positive integers that add up to 2^24.

    >>> weights_of(np.array([0, 8], np.uint8)).tolist()
    [5592405, 11184811]
    """
    shares = (8 + (codes & 7).astype(np.int64)) << (codes >> 3).astype(np.int64)
    free = (1 << PRECISION) - codes.size  # everyone has 1; the products stay below 2^59
    weights: NDArray[np.int64] = 1 + shares * free // shares.sum()
    weights[np.argmax(weights)] += (1 << PRECISION) - weights.sum()
    return weights


def frequencies(counts: Counts) -> NDArray[np.uint8]:
    """The codes of the counts, as coarse as table and stream together take least.

    Where values are many and each occurs a few times, to tell how often costs more than it gains.

    >>> frequencies(np.array([1, 2, 3, 100])).tolist(), set(frequencies(np.array([6, 7] * 10_000)).tolist())
    ([0, 8, 12, 53], {24})
    """
    codes = codes_of(counts).astype(np.int64)
    tables = [np.minimum((codes + step // 2) // step * step, 255).astype(np.uint8) for step in _STEPS]
    return min(tables, key=lambda table: _bits(counts, weights_of(table)) / 8 + squeezed_size(table))


def _bits(counts: Counts, weights: NDArray[np.int64]) -> float:
    """What the stream takes, to within a word for each chunk."""
    return float((counts * (PRECISION - np.log2(weights))).sum())


def cost(counts: Counts) -> float:
    """The cross entropy, the frequencies (which may yet be squeezed) and the chunks' overhead."""
    if not 2 <= counts.size <= MOST:
        return math.inf
    codes = frequencies(counts)
    bits = _bits(counts, weights_of(codes))
    number = -(-int(counts.sum()) // _chunk(int(counts.sum()), bits))
    return bits / 8 + squeezed_size(codes) + 10 * number


def _chunk(count: int, bits: float) -> int:
    """Indices of a chunk: a power of two, so many that it has some kilobytes."""
    per_index = max(bits / count, 1e-9)
    return 1 << min(max(int(_CHUNK_BYTES * 8 / per_index), _LEAST), _LARGEST).bit_length() - 1


def encode(indices: Indices, counts: Counts) -> Coded:
    """One stream for each chunk."""
    codes = frequencies(counts)
    weights = weights_of(codes)
    chunk = _chunk(indices.size, _bits(counts, weights))
    stream = library("constriction", "entropy coding").stream
    # With these probabilities the library's fixed-point model is exactly the weights: its scale becomes 1.
    model = stream.model.Categorical((weights - 1).astype(np.float64), perfect=False)

    def streams(some: Bits) -> list[NDArray[np.uint32]]:
        coders = [stream.stack.AnsCoder() for _ in range(0, some.size, chunk)]
        for number, coder in enumerate(coders):
            coder.encode_reverse(some[number * chunk : (number + 1) * chunk].astype(np.int32), model)
        return [coder.get_compressed() for coder in coders]

    made = [one for block in _blocks(indices.size, chunk) for one in streams(indices[block])]
    coded = Coded({"chunk": chunk}, {"indices": chunks.join(made), "frequencies": squeeze(codes)})
    _verify(coded, indices, counts.size)
    return coded


def _blocks(count: int, chunk: int) -> list[slice]:
    """Whole chunks, some at a time."""
    size = max(_BLOCK // chunk, 1) * chunk
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _verify(coded: Coded, indices: Indices, distinct: int) -> None:
    """Decode again: another release of the library could have another format."""
    values = np.arange(distinct, dtype=indices.dtype)
    for block in _blocks(indices.size, coded.settings["chunk"]):
        again = np.empty(block.stop - block.start, indices.dtype)
        decode(coded, values, indices.size, block.start, again)
        if not np.array_equal(again, indices[block]):
            raise RuntimeError(
                "constriction wrote streams that this version of weightshare cannot read; install "
                "constriction 0.4 or 0.5, or save with prefer='speed'"
            )


def check(coded: Coded, count: int, distinct: int) -> None:
    """Lengths, and the number of frequencies; what is in the streams is seen when they are decoded."""
    if not 2 <= distinct <= MOST:
        raise ValueError(f"frequencies of {distinct} values")
    unsqueeze(coded.parts["frequencies"], distinct)
    chunks.bounds(coded.parts["indices"], count, coded.settings["chunk"])


def decode(coded: Coded, values: Bits, count: int, start: int, out: Bits) -> None:
    """Every chunk must end where an encoder began: with its words used up and in state 0."""
    weights = weights_of(unsqueeze(coded.parts["frequencies"], values.size))
    left = np.zeros(weights.size + 1, np.uint32)
    np.cumsum(weights, out=left[1:])
    shift = PRECISION - min(max(bits_for(weights.size) + 2, 12), 16)
    buckets = np.arange(1 << (PRECISION - shift)) << shift
    first = (np.searchsorted(left, buckets, "right") - 1).astype(np.uint32)
    words, chunk = coded.parts["indices"], coded.settings["chunk"]
    edges = chunks.bounds(words, count, chunk)

    def work(number: int, into: Bits) -> None:
        some = edges[number : number + 1 - (-into.size // chunk)]
        broken = kernels.decode_ans(words, some, left, first, shift, values, into, chunk)
        if broken >= 0:
            raise ValueError(f"the stream of chunk {number + broken} does not end as it should")

    chunks.decode_each(work, count, chunk, start, out, together=_TOGETHER)
