"""What becomes of the bit patterns of one tensor: the smallest of a few ways to store them, and the way back.

A coding is a description (numbers and names, for the file's metadata) and parts (arrays, which become tensors
of the file). Either the patterns are stored as they are (``raw``); or the distinct ones are, in a codebook,
and a coder stores an index for each weight. Patterns that are too rare to be worth a place in the codebook
are literals: one more index stands for "the next literal". So a tensor of zeros and of values that are all
different is a codebook of one value, a mask, and the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshare.compress import kernels
from weightshare.compress.codebook import Distinct, Numbers
from weightshare.compress.coders import CODERS, Coded, Counts, ans
from weightshare.compress.packing import Bits, Indices, bits_for, packed_size
from weightshare.compress.tally import Tally

Description = dict[str, Any]
Parts = dict[str, NDArray[Any]]

PREFER = ("size", "speed")
_SAMPLE, _SAMPLES = 1 << 17, 8  # weights in a piece, and pieces, where a part has to speak for the whole
_PROMISING = 1.1
_WORTH = 0.99  # what literals must bring a coding down to
_GAIN = 0.995  # what a codebook must: a tensor as it is can be read where it lies
_PIECE = 1 << 20  # weights whose indices are made at a time, where they are not held


@dataclass(frozen=True)
class Coding:
    """A description and the arrays by role."""

    description: Description
    parts: Parts

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


def encode(bits: Bits, prefer: str = "size") -> Coding:
    """The smallest coding of these patterns; with ``prefer="speed"`` only those that are read where they lie.

    >>> encode(np.array([3, 3, 9, 3] * 100, np.uint32), "speed").description
    {'coder': 'packed', 'bits': 1}
    >>> encode(np.arange(400, dtype=np.uint32)).description
    {'coder': 'raw'}
    """
    raw = Coding({"coder": "raw"}, {"values": bits})
    tally = Tally.of(bits)
    least = _least(tally, bits.itemsize) if prefer == "size" else _all(tally, bits.itemsize)
    if least is None:
        return raw
    found = tally.at_least(least)
    del tally  # and the memory it takes
    coding = _with_codebook(bits, found, prefer, raw.nbytes)
    return raw if coding is None or coding.nbytes >= raw.nbytes else coding


def _all(tally: Tally, width: int) -> int | None:
    """Every pattern into the codebook, unless these are so many that next to nothing is gained."""
    size, kept = int((tally.counts * tally.patterns).sum()), int(tally.patterns.sum())
    return 1 if kept * width + packed_size(size, bits_for(kept)) < _GAIN * size * width else None


def _least(tally: Tally, width: int) -> int | None:
    """How often a value has to occur to belong into a codebook: the others take less room as literals.

    Whichever values are literals, it is the rarest, and of equally rare ones all or none (the cost is concave
    in their number); so what counts as rare is all there is to find. A value costs its bytes and one for its
    frequency, an index its information. ``None`` where next to nothing
    is gained.
    """
    if not tally.counts.size:
        return None
    indices = tally.counts * tally.patterns
    literals = np.concatenate([[0], np.cumsum(indices)]).astype(np.float64)
    bits = _surprise(tally.counts.astype(np.float64)) * tally.patterns
    indexed = np.concatenate([np.cumsum(bits[::-1])[::-1], [0.0]])
    information = _surprise(literals[-1:]) - indexed - _surprise(literals)
    kept = np.concatenate([np.cumsum(tally.patterns[::-1])[::-1], [0]])
    packed = literals[-1] * np.ceil(np.log2(np.maximum(kept + (literals > 0), 1)))
    information = np.where(kept <= ans.MOST, information, packed)
    cost = kept * (width + 1) + literals * width + information / 8
    best = int(np.argmin(cost))
    if cost[best] > _WORTH * cost[0]:
        best = 0
    if cost[best] > _GAIN * literals[-1] * width:
        return None
    return int(tally.counts[best]) if best < tally.counts.size else None


def _surprise(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """n log2 n."""
    bits: NDArray[np.float64] = counts * np.log2(np.maximum(counts, 1.0))
    return bits


def _sample(array: Indices) -> Bits:
    """Pieces from all over."""
    if array.size <= _SAMPLE * _SAMPLES:
        return array[:]
    starts = np.linspace(0, array.size - _SAMPLE, _SAMPLES).astype(np.int64)
    return np.concatenate([array[start : start + _SAMPLE] for start in starts])


def _with_codebook(bits: Bits, found: Distinct, prefer: str, most: int) -> Coding | None:
    """The values once, an index for each weight, else literals; ``None`` if ``most`` is less."""
    values = found.values
    escaped = bits.size - int(found.counts.sum())
    counts = np.append(found.counts, escaped) if escaped else found.counts
    fixed = values.nbytes + escaped * bits.itemsize
    # Where indices are as wide as the weights they are made again and again, rather than held.
    lazy = Numbers(bits, values)
    numbers: Indices = lazy if lazy.dtype.itemsize >= bits.itemsize else lazy[:]
    coder = _cheapest(numbers, counts, ["packed"] if prefer == "speed" else list(CODERS), most - fixed)
    if coder is None:
        return None
    name, coded = coder
    description: Description = {"coder": name, **coded.settings}
    parts: Parts = {"codebook": values, **coded.parts}
    if escaped:
        description["literals"] = escaped
        parts["literals"] = _literals(bits, numbers, values.size, escaped)
    return Coding(description, parts)


def _literals(bits: Bits, numbers: Indices, mark: int, count: int) -> Bits:
    """The patterns that are not in the codebook, in order."""
    out, at = np.empty(count, bits.dtype), 0
    for start in range(0, bits.size, _PIECE):
        part = slice(start, start + _PIECE)
        some = bits[part][numbers[part] == mark]
        out[at : at + some.size] = some
        at += some.size
    return out


def _cheapest(numbers: Indices, counts: Counts, names: list[str], most: float) -> tuple[str, Coded] | None:
    """The coder that takes least, and what it made; ``None`` if none of them will stay below ``most`` bytes.

    What some take can be told from the counts; the others are tried on a sample, and then on everything.
    """
    costs = {name: CODERS[name].cost(counts) for name in names}
    known = {name: cost for name, cost in costs.items() if not np.isnan(cost)}
    name = min(known, key=lambda name: known[name])
    coded: Coded | None = None
    for other in costs.keys() - known.keys():
        part = _sample(numbers)
        promised = CODERS[other].encode(part, counts).nbytes * numbers.size / part.size
        if promised < _PROMISING * known[name] and promised < _PROMISING * most:
            trial = CODERS[other].encode(numbers, counts)
            if trial.nbytes < known[name]:
                name, coded = other, trial
    if coded is None and known[name] >= most:
        return None
    return name, coded or CODERS[name].encode(numbers, counts)


def roles(description: Mapping[str, Any]) -> dict[str, str | None]:
    """The parts of a coding and their dtypes, ``None`` for the tensor's own; ``ValueError`` if it is none.

    >>> roles({"coder": "packed", "bits": 3})
    {'codebook': None, 'indices': 'U8'}
    """
    name = description["coder"]
    coder = CODERS.get(name) if isinstance(name, str) else None
    if coder is None:
        raise ValueError(f"unknown coder {name!r}; this version knows {', '.join(CODERS)}")
    settings = set(description) - {"coder", "literals"}
    if settings != coder.SETTINGS:
        raise ValueError(f"coder {name!r} has the settings {sorted(coder.SETTINGS)}, not {sorted(settings)}")
    for key in set(description) - {"coder"}:
        if type(description[key]) is not int or not 0 <= description[key] < 1 << 62:
            raise ValueError(f"{key} is {description[key]!r}")
    return {"codebook": None, **coder.PARTS, **({"literals": None} if "literals" in description else {})}


def check(description: Mapping[str, Any], parts: Mapping[str, NDArray[Any]], count: int) -> None:
    """``ValueError`` unless ``count`` patterns can be stored so; ``parts`` are those of :func:`roles`."""
    codebook, literals = parts["codebook"], description.get("literals")
    # Of small patterns there are few, and then indices take no more memory than the weights.
    most = min(count, (1 << 8 * codebook.itemsize) - (literals is not None))
    if codebook.size > most:
        raise ValueError(f"a codebook of {codebook.size} values, where there can be {most}")
    if literals is not None and not 0 < literals == parts["literals"].size <= count:
        raise ValueError(
            f"{parts['literals'].size} literals where there should be {literals}, of {count} weights"
        )
    CODERS[description["coder"]].check(
        _coded(description, parts), count, codebook.size + (literals is not None)
    )


def _coded(description: Mapping[str, Any], parts: Mapping[str, NDArray[Any]]) -> Coded:
    return Coded(
        {key: value for key, value in description.items() if key not in ("coder", "literals")},
        {role: part for role, part in parts.items() if role not in ("codebook", "literals")},
    )


def decode(
    description: Mapping[str, Any], parts: Mapping[str, NDArray[Any]], count: int, start: int, out: Bits
) -> None:
    """Patterns ``start`` to ``start + out.size`` of ``count`` that :func:`check` has seen.

    ``ValueError`` for payloads that are broken, and then ``out`` is, too.
    """
    coder, coded, values = CODERS[description["coder"]], _coded(description, parts), parts["codebook"]
    if "literals" not in description:
        coder.decode(coded, values, count, start, out)
        return
    mark = _unused(values)
    # Which literal a weight has is known when all before it are.
    whole = out if out.size == count else np.empty(count, out.dtype)
    coder.decode(coded, np.append(values, mark), count, 0, whole)
    marked = kernels.fill_marked(whole, mark, parts["literals"])
    if marked != parts["literals"].size:
        raise ValueError(f"{marked} weights are literals, but there are {parts['literals'].size}")
    if whole is not out:
        out[:] = whole[start : start + out.size]


def _unused(values: Bits) -> Any:
    """The smallest pattern that is not among the values."""
    small = np.unique(values[values <= values.size])
    gap = np.flatnonzero(small != np.arange(small.size, dtype=values.dtype))
    return values.dtype.type(gap[0] if gap.size else small.size)
