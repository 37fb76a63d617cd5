"""Files that lie: mutated blindly, or changed and given the right checksums again, as a forger would."""

import json
import zlib

import numpy as np

CHECKSUMS = "weightshare.checksums"
BLOCK = 1 << 20


def opened(raw):
    """The header and the data of a file."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])


def about(header):
    """What the file says of itself."""
    return json.loads(header["__metadata__"]["weightshare"])


def sealed(header, data, description=None, text=None):
    """A file of that content with the right checksums, whatever the content is.

    ``description`` takes the place of the one in the header; ``text`` that of the whole header.
    """
    if description is not None:
        words = description if isinstance(description, str) else json.dumps(description)
        header = {**header, "__metadata__": {**header["__metadata__"], "weightshare": words}}
    plain = json.dumps(header).encode() if text is None else text
    plain += b" " * (-len(plain) % 8)
    head = len(plain).to_bytes(8, "little") + plain
    size = 4 * (1 + -(-(len(data)) // (BLOCK + 4)))
    body = bytes(data[:-size])
    sums = [zlib.crc32(head), *(zlib.crc32(body[i : i + BLOCK]) for i in range(0, len(body), BLOCK))]
    return head + body + np.array(sums, "<u4").tobytes()


def mutated(raw, rng):
    """Some bytes are others, or elsewhere, or missing, or more."""
    out = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        at, size = int(rng.integers(len(out) + 1)), int(2 ** rng.uniform(0, 8))
        match rng.integers(8):
            case 0:
                del out[at:]
            case 1:
                del out[at : at + size]
            case 2:
                out[at:at] = rng.bytes(size)
            case 3:
                out[at : at + size] = rng.bytes(len(out[at : at + size]))
            case 4:
                out[at : at + size] = bytes(len(out[at : at + size]))
            case 5:
                out[at:at] = out[int(rng.integers(len(out) + 1)) :][:size]
            case _ if out:
                out[at % len(out)] ^= 1 << int(rng.integers(8))
        if rng.random() < 0.3 and len(out) > 8:  # more often where it matters most
            where = int(rng.integers(min(len(out), 1500)))
            out[where] = int(rng.integers(256))
    return bytes(out)


NUMBERS = [-1, *range(10), 16, 31, 32, 33, 255, 256, *(1 << bits for bits in (20, 31, 32, 61, 62, 64))]
WORDS = ["", "w", "raw", "packed", "ans", "zstd", "U8", "U32", "F32", "F64", "F4", "BOOL", CHECKSUMS]
OTHERS = [None, True, 1.5, float("nan"), [], {}, [[]], "\ud800", 10**30]


def another(value, rng):
    """Something else in the place of a value of JSON."""
    if type(value) is int and rng.random() < 0.8:
        near = [value - 1, value + 1, 2 * value, value // 2]
        return int(rng.choice(near)) if rng.random() < 0.4 else NUMBERS[rng.integers(len(NUMBERS))]
    if isinstance(value, str) and rng.random() < 0.8:
        return WORDS[rng.integers(len(WORDS))]
    return OTHERS[rng.integers(len(OTHERS))]


def places(value, path=()):
    """Where in a value of JSON there are others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))


def changed(value, rng):
    """The same with one thing in it removed, doubled under another name, or another."""
    spots = list(places(value))
    if not spots:
        return another(value, rng)
    *way, last = spots[rng.integers(len(spots))]
    holder = value
    for key in way:
        holder = holder[key]
    match rng.integers(6):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, dict):
            holder[WORDS[rng.integers(len(WORDS))]] = holder[last]
        case 2 if isinstance(holder, dict):
            holder[list(holder)[rng.integers(len(holder))]] = holder[last]
        case 3 if isinstance(holder, list):
            holder.append(holder[last])
        case _:
            holder[last] = another(holder[last], rng)
    return value


def forged(raw, rng):
    """A file whose checksums are right and whose content is not."""
    header, data = opened(raw)
    description = about(header)
    for _ in range(int(rng.integers(1, 3))):
        match rng.integers(4):
            case 0:
                header = changed(header, rng)
            case 1 | 2:
                description = changed(description, rng)
            case _:
                at, size = int(rng.integers(len(data))), int(2 ** rng.uniform(0, 6))
                data[at : at + size] = rng.bytes(len(data[at : at + size]))
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        return sealed({}, data, text=json.dumps(header).encode())
    return sealed(header, data, description)
