"""Compressed files read a second time, from docs/compression.md alone: slow, obvious, sharing no code."""

import json
import zlib
from pathlib import Path

import numpy as np
import zstandard

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip
ROLES = ("codebook", "indices", "frequencies", "literals")


def read(path):
    """For each name the shape and the bit patterns, flat; in the order of the names."""
    raw = Path(path).read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:length]), raw[length:]
    about = json.loads(header.pop("__metadata__")["weightshare"])
    assert about["version"] == 1
    mark = about["separator"]
    entries = {name: (e, data[slice(*e["data_offsets"])]) for name, e in header.items()}
    check_sums(raw[:length], data, entries.pop(f"weightshare{mark}checksums")[1], about["block"])
    found = {}
    owners = {f"{name}{mark}{role}": name for name in about["tensors"] for role in ROLES}
    for name, (entry, stored) in entries.items():
        whole = owners.get(name, name)
        if name in owners and whole not in found:
            one = about["tensors"][whole]
            parts = {role: entries[f"{whole}{mark}{role}"][1] for role in ROLES
                     if f"{whole}{mark}{role}" in entries}  # fmt: skip
            found[whole] = one["shape"], decode(one, parts)
        elif name not in owners:
            found[name] = entry["shape"], numbers(stored, SIZES[entry["dtype"]])
    order = list(found)
    for name, (_, place) in sorted(about["aliases"].items(), key=lambda alias: alias[1][1]):
        order.insert(place, name)
    return {name: found[about["aliases"].get(name, [name])[0]] for name in order}


def check_sums(head, data, stored, block):
    sums = numbers(stored, 4)
    rest = data[: len(data) - len(stored)]
    blocks = [rest[at : at + block] for at in range(0, len(rest), block)]
    assert [zlib.crc32(part) for part in (head, *blocks)] == sums.tolist()


def numbers(stored, size):
    return np.frombuffer(stored, f"<u{size}")


def decode(one, parts):
    count = int(np.prod(one["shape"], dtype=np.int64))
    size = SIZES[one["dtype"]]
    codebook = numbers(parts["codebook"], size)
    kinds = len(codebook) + ("literals" in one)
    coder = {"packed": packed, "zstd": zstd, "ans": ans}[one["coder"]]
    indices = coder(one, parts, count, kinds)
    assert len(indices) == count
    values = np.zeros(count, codebook.dtype)
    known = indices < len(codebook)
    values[known] = codebook[indices[known]]
    literals = numbers(parts.get("literals", b""), size)
    assert len(literals) == one.get("literals", 0) == (~known).sum()
    values[~known] = literals
    return values


def bits_for(kinds):
    return max(kinds - 1, 0).bit_length()


def unpack(stored, bits, count):
    stream = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")[: count * bits]
    return (stream.reshape(count, bits).astype(np.int64) << np.arange(bits)).sum(axis=1)


def packed(one, parts, count, kinds):
    assert one["bits"] == bits_for(kinds)
    return unpack(parts["indices"], one["bits"], count)


def chunks(stored, count, chunk, width):
    """The bytes of each chunk, and how many indices are in it."""
    sizes = [min(chunk, count - at) for at in range(0, count, chunk)]
    at = 4 * len(sizes)
    for length, size in zip(numbers(stored[:at], 4).tolist(), sizes):
        yield stored[at : at + length * width], size
        at += length * width
    assert at == len(stored)


def zstd(one, parts, count, kinds):
    assert one["bits"] == 1 << max(bits_for(kinds) - 1, 0).bit_length()
    each = chunks(parts["indices"], count, one["chunk"], 1)
    return np.concatenate([unpack(zstandard.decompress(frame), one["bits"], size) for frame, size in each])


def ans(one, parts, count, kinds):
    codes = parts["frequencies"]
    codes = codes if len(codes) == kinds else zstandard.decompress(codes)
    shares = [(8 + f % 8) << (f // 8) for f in codes]
    total = sum(shares)
    weights = [1 + s * (2**24 - kinds) // total for s in shares]
    weights[weights.index(max(weights))] += 2**24 - sum(weights)
    left = np.concatenate([[0], np.cumsum(weights)])
    indices = []
    for stored, size in chunks(parts["indices"], count, one["chunk"], 4):
        words, x = numbers(stored, 4).tolist(), 0
        for _ in range(2):
            if x < 2**32 and words:
                x = x << 32 | words.pop()
        for _ in range(size):
            q = x % 2**24
            s = int(np.searchsorted(left, q, "right")) - 1
            indices.append(s)
            x = weights[s] * (x >> 24) + q - int(left[s])
            if x < 2**32 and words:
                x = x << 32 | words.pop()
        assert x == 0
        assert not words
    return np.array(indices)
