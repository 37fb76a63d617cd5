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
def find_all(patterns, values, slots, shift, out, counts):
    """out = number of each pattern among the values, or their number if it is not there; and counts."""
    mask = np.int64(slots.size - 1)
    none = np.int64(values.size)
    for i in range(patterns.size):
        wanted = patterns[i]
        at = np.int64((np.uint64(wanted) * np.uint64(_HASH)) >> np.uint64(shift))
        found = np.int64(slots[at])
        while found != 0 and values[found - 1] != wanted:
            at = (at + 1) & mask
            found = np.int64(slots[at])
        number = found - 1 if found != 0 else none
        out[i] = number
        counts[number] += 1


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
def fill_runs(ordered, values, counts):
    """The different patterns, and how often each occurs."""
    at = -1
    for i in range(ordered.size):
        if i == 0 or ordered[i] != ordered[i - 1]:
            at += 1
            values[at] = ordered[i]
            counts[at] = 0
        counts[at] += 1


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


@kernel
def decode_ans(words, left, first, shift, values, out):
    """Pop ``out.size`` symbols from a stream that constriction's AnsCoder wrote, and look them up.

    Symbol s has the quantiles left[s] to left[s + 1] - 1; first[q >> shift] is a symbol at or before q's.
    Returns whether the stream ended as it began: no word left, state 0.
    """
    at = words.size
    state = np.uint64(0)
    while state < np.uint64(1 << 32) and at > 0:
        at -= 1
        state = (state << np.uint64(32)) | np.uint64(words[at])
    for i in range(out.size):
        quantile = np.uint32(state & np.uint64(0xFFFFFF))
        symbol = np.uint64(first[quantile >> np.uint32(shift)])
        low = left[symbol]
        high = left[symbol + np.uint64(1)]
        while high <= quantile:
            symbol += np.uint64(1)
            low = high
            high = left[symbol + np.uint64(1)]
        out[i] = values[symbol]
        state = np.uint64(high - low) * (state >> np.uint64(24)) + np.uint64(quantile - low)
        if state < np.uint64(1 << 32) and at > 0:
            at -= 1
            state = (state << np.uint64(32)) | np.uint64(words[at])
    return at == 0 and state == 0


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
