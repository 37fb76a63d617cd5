"""Compiled loops over bit patterns, indices and packed indices; without the GIL, on slices.

Packed indices are one stream of bits, least significant first: index i of ``bits`` bits takes the bits
``i * bits`` to ``(i + 1) * bits - 1`` of it, and bit t of byte j is bit ``8 j + t`` of the stream.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from weightshare.kernels.cpu.jit import inline, kernel

_HASH = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring patterns land far apart


@intrinsic
def _load64(typingctx, array, index):
    """Eight bytes of a contiguous uint8 array from ``index`` on, wherever they lie, as a uint64."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(array, types.int64), codegen


@kernel
def fill_slots(values, slots, shift):
    """Place every value's number + 1 in an open-addressing table of 2^(64 - shift) slots, 0 where free."""
    mask = np.int64(slots.size - 1)
    for i in range(values.size):
        at = np.int64((np.uint64(values[i]) * np.uint64(_HASH)) >> np.uint64(shift))
        while slots[at] != 0:
            at = (at + 1) & mask
        slots[at] = i + 1


@kernel
def find_all(patterns, values, slots, shift, out):
    """out = number of each pattern among the values, or how many these are if it is not there."""
    mask = np.int64(slots.size - 1)
    none = np.int64(values.size)
    for i in range(patterns.size):
        wanted = patterns[i]
        at = np.int64((np.uint64(wanted) * np.uint64(_HASH)) >> np.uint64(shift))
        found = np.int64(slots[at])
        while found != 0 and values[found - 1] != wanted:
            at = (at + 1) & mask
            found = np.int64(slots[at])
        out[i] = found - 1 if found != 0 else none


@kernel
def count_small(patterns, counts):
    """counts[p] += how often each pattern of 8 or 16 bits occurs."""
    for i in range(patterns.size):
        counts[patterns[i]] += 1


@kernel
def count_runs(ordered):
    """How many different patterns there are, equal ones being neighbours."""
    number = min(ordered.size, 1)
    for i in range(1, ordered.size):
        number += ordered[i] != ordered[i - 1]
    return number


@kernel
def count_lengths(ordered, histogram, long):
    """histogram[n] = how many patterns occur n times; counts that it has no place for go to ``long``.

    Returns how many of the latter there are.
    """
    begin = number = 0
    for i in range(1, ordered.size + 1):
        if i == ordered.size or ordered[i] != ordered[begin]:
            length = i - begin
            if length < histogram.size:
                histogram[length] += 1
            else:
                long[number] = length
                number += 1
            begin = i
    return number


@kernel
def fill_runs(ordered, least, values, counts):
    """The different patterns that occur at least so often, and how often."""
    begin = at = 0
    for i in range(1, ordered.size + 1):
        if i == ordered.size or ordered[i] != ordered[begin]:
            if i - begin >= least:
                values[at] = ordered[begin]
                counts[at] = i - begin
                at += 1
            begin = i


@kernel
def merge_runs(values_a, counts_a, values_b, counts_b, values, counts):
    """Merge two ascending lists of values; counts of what is in both add up. Returns how many there are."""
    a = b = at = 0
    while a < values_a.size or b < values_b.size:
        take_a = b == values_b.size or (a < values_a.size and values_a[a] <= values_b[b])
        take_b = a == values_a.size or (b < values_b.size and values_b[b] <= values_a[a])
        count = np.int64(0)
        if take_a:
            values[at] = values_a[a]
            count += counts_a[a]
            a += 1
        if take_b:
            values[at] = values_b[b]
            count += counts_b[b]
            b += 1
        counts[at] = count
        at += 1
    return at


@kernel
def gather(indices, table, out):
    """out = table[index]; returns the largest index, and where that is outside the table writes nothing."""
    most = np.int64(0)
    for i in range(indices.size):
        most = max(most, np.int64(indices[i]))
    if most < table.size:
        for i in range(indices.size):
            out[i] = table[indices[i]]
    return most


@kernel
def pack_slice(indices, bits, out):
    """Pack indices from the first bit of ``out`` on; ``out`` has exactly the bytes they need."""
    held, filled, at = np.uint64(0), 0, 0
    for i in range(indices.size):
        held |= np.uint64(indices[i]) << np.uint64(filled)
        filled += bits
        while filled >= 8:
            out[at] = held & np.uint64(255)
            held >>= np.uint64(8)
            filled -= 8
            at += 1
    if filled > 0:
        out[at] = held & np.uint64(255)


@inline
def _near_the_end(packed, bit, mask):
    """The index at ``bit`` where eight bytes cannot be read at once; bytes behind the end count as 0."""
    first = bit >> 3
    word = np.uint64(0)
    for j in range(first, min(first + 5, packed.size)):
        word |= np.uint64(packed[j]) << np.uint64(8 * (j - first))
    return (word >> np.uint64(bit & 7)) & mask


@kernel
def unpack_slice(packed, bits, start, out):
    """out[i] = packed index ``start + i``; returns the largest."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    most = np.uint64(0)
    whole = min(max((packed.size - 8) * 8 // bits - start, 0), out.size) if packed.size >= 8 else 0
    for i in range(whole):
        bit = (start + i) * bits
        index = (_load64(packed, bit >> 3) >> np.uint64(bit & 7)) & mask
        most = max(most, index)
        out[i] = index
    for i in range(whole, out.size):
        index = _near_the_end(packed, (start + i) * bits, mask)
        most = max(most, index)
        out[i] = index
    return np.int64(most)


@kernel
def take_slice(packed, bits, start, table, out):
    """out[i] = table[packed index ``start + i``]; returns the largest index. Needs 2^bits entries."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    most = np.uint64(0)
    whole = min(max((packed.size - 8) * 8 // bits - start, 0), out.size) if packed.size >= 8 else 0
    for i in range(whole):
        bit = (start + i) * bits
        index = (_load64(packed, bit >> 3) >> np.uint64(bit & 7)) & mask
        most = max(most, index)
        out[i] = table[index]
    for i in range(whole, out.size):
        index = _near_the_end(packed, (start + i) * bits, mask)
        most = max(most, index)
        out[i] = table[index]
    return np.int64(most)


@kernel
def take_rows(packed, bits, start, tables, length, out):
    """out[i] = tables[row of i, packed index i], i counted from ``start``, rows ``length`` long; returns the
    largest index, and reads no table beyond its end."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    last = np.uint64(tables.shape[1] - 1)
    most = np.uint64(0)
    whole = min(max((packed.size - 8) * 8 // bits - start, 0), out.size) if packed.size >= 8 else 0
    i = 0
    while i < out.size:
        row = (start + i) // length
        stop = min((row + 1) * length - start, out.size)
        for j in range(i, min(stop, whole)):
            bit = (start + j) * bits
            index = (_load64(packed, bit >> 3) >> np.uint64(bit & 7)) & mask
            most = max(most, index)
            out[j] = tables[row, min(index, last)]
        for j in range(max(i, whole), stop):
            index = _near_the_end(packed, (start + j) * bits, mask)
            most = max(most, index)
            out[j] = tables[row, min(index, last)]
        i = stop
    return np.int64(most)


@kernel
def add_rows(packed, bits, start, values, length, sums):
    """sums[row of i, packed index i] += values[i]: what :func:`take_rows` is the transpose of."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    last = np.uint64(sums.shape[1] - 1)
    whole = min(max((packed.size - 8) * 8 // bits - start, 0), values.size) if packed.size >= 8 else 0
    i = 0
    while i < values.size:
        row = (start + i) // length
        stop = min((row + 1) * length - start, values.size)
        for j in range(i, min(stop, whole)):
            bit = (start + j) * bits
            index = (_load64(packed, bit >> 3) >> np.uint64(bit & 7)) & mask
            sums[row, min(index, last)] += values[j]
        for j in range(max(i, whole), stop):
            sums[row, min(_near_the_end(packed, (start + j) * bits, mask), last)] += values[j]
        i = stop


@inline
def _pop(state, left, first, shift):
    """A symbol and the state after it.

    Symbol s has the quantiles left[s] to left[s + 1] - 1; first[q >> shift] is a symbol at or before q's.
    """
    quantile = np.uint32(state & np.uint64(0xFFFFFF))
    symbol = np.uint64(first[quantile >> np.uint32(shift)])
    while left[symbol + np.uint64(1)] <= quantile:
        symbol += np.uint64(1)
    low = left[symbol]
    width = left[symbol + np.uint64(1)] - low
    return symbol, np.uint64(width) * (state >> np.uint64(24)) + np.uint64(quantile - low)


@inline
def _refill(state, words, at, begin):
    """Take a word where the state has become short and one is left; no branch, as none could be foreseen."""
    short = state < np.uint64(1 << 32) and at > begin
    at -= short
    word = np.uint64(words[min(at, words.size - 1)])
    return ((state << np.uint64(32)) | word if short else state), at


@inline
def _first_state(words, begin, end):
    state, at = _refill(np.uint64(0), words, end, begin)
    return _refill(state, words, at, begin)


@inline
def _decode_one(words, begin, end, left, first, shift, values, out):
    """One chunk; whether its stream ended as it began: no word left, state 0."""
    state, at = _first_state(words, begin, end)
    for i in range(out.size):
        symbol, state = _pop(state, left, first, shift)
        out[i] = values[symbol]
        state, at = _refill(state, words, at, begin)
    return at == begin and state == 0


@inline
def _decode_four(words, edges, left, first, shift, values, out, size):
    """Four chunks at a time: each waits for its own state only. Returns the first that is broken, or 4."""
    a, at_a = _first_state(words, edges[0], edges[1])
    b, at_b = _first_state(words, edges[1], edges[2])
    c, at_c = _first_state(words, edges[2], edges[3])
    d, at_d = _first_state(words, edges[3], edges[4])
    for i in range(size):
        symbol, a = _pop(a, left, first, shift)
        out[i] = values[symbol]
        a, at_a = _refill(a, words, at_a, edges[0])
        symbol, b = _pop(b, left, first, shift)
        out[size + i] = values[symbol]
        b, at_b = _refill(b, words, at_b, edges[1])
        symbol, c = _pop(c, left, first, shift)
        out[2 * size + i] = values[symbol]
        c, at_c = _refill(c, words, at_c, edges[2])
        symbol, d = _pop(d, left, first, shift)
        out[3 * size + i] = values[symbol]
        d, at_d = _refill(d, words, at_d, edges[3])
    whole = (a == 0 and at_a == edges[0], b == 0 and at_b == edges[1],
             c == 0 and at_c == edges[2], d == 0 and at_d == edges[3])  # fmt: skip
    for lane in range(4):
        if not whole[lane]:
            return lane
    return 4


@kernel
def decode_ans(words, edges, left, first, shift, values, out, chunk):
    """Decode streams that constriction's AnsCoder wrote, of ``chunk`` symbols each (the last may have fewer).

    Stream n is words edges[n] to edges[n + 1] - 1. Returns the number of the first that is broken, or -1.
    """
    full = out.size // chunk // 4 * 4
    for n in range(0, full, 4):
        lane = _decode_four(
            words, edges[n:], left, first, shift, values, out[n * chunk : (n + 4) * chunk], chunk
        )
        if lane < 4:
            return n + lane
    for n in range(full, edges.size - 1):
        into = out[n * chunk : min((n + 1) * chunk, out.size)]
        if not _decode_one(words, edges[n], edges[n + 1], left, first, shift, values, into):
            return n
    return -1


@kernel
def fill_marked(out, mark, literals):
    """Replace each ``mark`` in ``out`` by the next literal; returns how many marks there are."""
    at = 0
    for i in range(out.size):
        if out[i] == mark:
            if at < literals.size:
                out[i] = literals[at]
            at += 1
    return at
