"""The safetensors container: a header in JSON that says where each tensor lies, then the tensors' bytes.

Written here rather than with the library of that name because a tensor at a time has to pass through, and
read here because a header that lies must be refused before anything is allocated. The library reads what is
written.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from weightshare.compress.dtypes import SIZES, byte_count, element_shape, written_shape
from weightshare.compress.packing import Bits, Bytes

METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000  # as in the library
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: ``shape`` in elements of PyTorch's dtype, ``read`` gives the bytes."""

    name: str
    code: str
    shape: tuple[int, ...]
    read: Callable[[], Iterable[memoryview | bytes]]

    @property
    def nbytes(self) -> int:
        return byte_count(self.code, self.shape)


def entry(code: str, shape: Iterable[int], begin: int, end: int) -> dict[str, Any]:
    """What a header says of a tensor."""
    return {"dtype": code, "shape": written_shape(code, list(shape)), "data_offsets": [begin, end]}


def dumps(value: Any) -> str:
    """JSON as short as it can be."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("safetensors files are read and written on little-endian machines only")


def header_of(
    tensors: list[Tensor], metadata: Mapping[str, str], last: str | None
) -> tuple[bytes, list[Tensor]]:
    """The header, its length included, and the tensors in the order of their bytes.

    Names stand in the order given. Bytes go by the size of the elements, so that each tensor is aligned;
    the tensor called ``last`` closes the file.
    """
    order = sorted(tensors, key=lambda tensor: (tensor.name == last, -SIZES[tensor.code]))
    begins, at = {}, 0
    for tensor in order:
        begins[tensor.name] = at
        at += tensor.nbytes
    content: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for tensor in tensors:
        begin = begins[tensor.name]
        content[tensor.name] = entry(tensor.code, tensor.shape, begin, begin + tensor.nbytes)
    text = dumps(content).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def write(
    file: IO[bytes],
    tensors: list[Tensor],
    metadata: Mapping[str, str],
    last: str | None = None,
    told: Callable[[memoryview | bytes], None] | None = None,
) -> None:
    """Write a container; ``told`` gets every piece that is written, the header first."""
    _little_endian()
    header, order = header_of(tensors, metadata, last)
    if len(header) - 8 > LONGEST_HEADER:
        raise ValueError(f"{len(tensors)} tensors need a header of {len(header):,} bytes; safetensors allows "
                         f"{LONGEST_HEADER:,}: save the model in several files")  # fmt: skip
    tell = told or (lambda piece: None)
    tell(header)
    file.write(header)
    for tensor in order:
        written = 0
        for piece in tensor.read():
            tell(piece)
            file.write(piece)
            written += len(piece)
        if written != tensor.nbytes:
            raise RuntimeError(f"{tensor.name!r} changed while it was being saved; save it again")


@dataclass(frozen=True)
class Entry:
    """Where a tensor of a file lies; ``shape`` in elements of PyTorch's dtype."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Container:
    """A safetensors file, open for reading where it lies; its header is checked, its tensors are not.

    ``ValueError`` that names the file for everything that is not as the format wants it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _little_endian()
        self.path = Path(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 10:
                raise self.wrong(f"{size} bytes are too few for a safetensors file")
            # Arrays that look into it may be written to, which compiled loops like; the file never changes.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._memory: Bytes = np.frombuffer(self._map, np.uint8)
        length = int.from_bytes(self._map[:8], "little")
        if length > min(LONGEST_HEADER, size - 8):
            raise self.wrong(
                f"its header should have {length:,} bytes, but the file has {size:,}; it is cut off, or "
                "no safetensors file"
            )
        self.header_bytes = self._memory[: 8 + length]
        self.data = self._memory[8 + length :]
        content = self._parsed(self._map[8 : 8 + length])
        self.metadata = self._metadata(content.pop(METADATA, {}))
        self.entries = {name: self._entry(name, value) for name, value in content.items()}
        self._check_coverage()

    def wrong(self, what: str) -> ValueError:
        """An error about this file."""
        return ValueError(f"{self.path}: {what}")

    def array(self, name: str) -> Bytes:
        """The bytes of a tensor, where they lie."""
        found = self.entries[name]
        return self.data[found.begin : found.end]

    def patterns(self, name: str) -> Bits:
        """The same as unsigned integers of the size of the tensor's elements."""
        size = SIZES[self.entries[name].code]
        bits: Bits = self.array(name).view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size])
        return bits if bits.flags.aligned else bits.copy()

    def _parsed(self, text: bytes) -> dict[str, Any]:
        if not text.startswith(b"{"):
            raise self.wrong("it is no safetensors file: its header does not begin with a brace")
        try:
            content: dict[str, Any] = loads(text.decode())
        except ValueError as error:
            raise self.wrong(f"its header cannot be read: {error}") from None
        return content

    def _metadata(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self.wrong(f"{METADATA} must have words for keys and for values")
        return value

    def _entry(self, name: str, value: Any) -> Entry:
        wrong = None
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            wrong = "must have dtype, shape and data_offsets"
        elif value["dtype"] not in SIZES if isinstance(value["dtype"], str) else True:
            wrong = f"has the unknown dtype {value['dtype']!r}"
        elif not _naturals(value["shape"]) or len(value["shape"]) > _MOST_DIMENSIONS:
            wrong = "has a shape that is none"
        elif not _naturals(value["data_offsets"]) or len(value["data_offsets"]) != 2:
            wrong = "has data_offsets that are none"
        if wrong is None:
            begin, end = value["data_offsets"]
            shape = element_shape(value["dtype"], value["shape"])
            if shape is None or byte_count(value["dtype"], shape) != end - begin:
                wrong = f"of shape {value['shape']} and dtype {value['dtype']} has {end - begin} bytes"
            else:
                return Entry(value["dtype"], shape, begin, end)
        raise self.wrong(f"tensor {name!r} {wrong}")

    def _check_coverage(self) -> None:
        """Every byte belongs to one tensor."""
        at = 0
        for name, found in sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if found.begin != at:
                raise self.wrong(f"tensor {name!r} begins at byte {found.begin} of the data, not at {at}")
            at = found.end
        if at != self.data.size:
            raise self.wrong(
                f"its tensors have {at:,} bytes, but {self.data.size:,} follow the header; it is cut off or "
                "damaged"
            )


class _TwiceError(Exception):
    """A key that stands twice in an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has no opinion on keys that stand twice; one of them would be lost."""
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _TwiceError(key)
        seen.add(key)
        key.encode()  # half of a surrogate pair is no character
    return dict(pairs)


def loads(text: str) -> Any:
    """JSON in which no key stands twice; ``ValueError`` if it is none."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except _TwiceError as error:
        raise ValueError(f"{error.args[0]!r} stands twice") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)
