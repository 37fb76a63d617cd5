"""What a compressed file says about itself: version, codings, aliases, checksums (docs/compression.md).

The description is JSON under one key of the metadata of a safetensors file. A tensor that it does not name is
stored as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weightshare.compress.container import dumps, loads
from weightshare.compress.encoding import Description
from weightshare.compress.packing import Bytes

KEY = "weightshare"  # in the metadata, and the name before the separator of the checksums
VERSION = 1
BLOCK = 1 << 20  # bytes that share a checksum
ROLES = ("codebook", "indices", "frequencies", "literals")


@dataclass(frozen=True)
class Described:
    """A tensor that is stored in parts."""

    code: str
    shape: tuple[int, ...]
    coding: Description


@dataclass(frozen=True)
class About:
    """The description of a file."""

    separator: str
    tensors: dict[str, Described] = field(default_factory=dict)
    aliases: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Names of tensors that are another one: that one's name, and the place in the order of all names."""
    block: int = BLOCK

    @property
    def checksums(self) -> str:
        """The name of the tensor with the checksums."""
        return f"{KEY}{self.separator}checksums"

    def dumps(self) -> str:
        """As it stands in the metadata."""
        tensors = {name: described(one.code, one.shape, one.coding) for name, one in self.tensors.items()}
        content: dict[str, Any] = {"version": VERSION, "separator": self.separator, "block": self.block}
        aliases = {name: list(value) for name, value in self.aliases.items()}
        return dumps({**content, "tensors": tensors, "aliases": aliases})

    @staticmethod
    def loads(text: str) -> About:
        """Read it; ``ValueError`` with the reason if it is not well-formed or of another version."""
        content = loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        version = content.get("version")
        if version != VERSION or type(version) is not int:
            raise ValueError(
                f"it has format version {version!r}, and this weightshare reads version {VERSION}; "
                "install a release that knows it"
            )
        _keys(content, {"version", "separator", "block", "tensors", "aliases"}, "the description")
        separator, block = content["separator"], content["block"]
        if not isinstance(separator, str) or not separator:
            raise ValueError(f"its separator is {separator!r}")
        if type(block) is not int or not 1 << 12 <= block <= 1 << 40:
            raise ValueError(f"its checksums are for blocks of {block!r} bytes")
        if not isinstance(content["tensors"], dict) or not isinstance(content["aliases"], dict):
            raise ValueError("its tensors and aliases must be objects")
        tensors = {name: _described(name, value) for name, value in content["tensors"].items()}
        aliases = {name: _alias(name, value) for name, value in content["aliases"].items()}
        return About(separator, tensors, aliases, block)


def described(code: str, shape: Iterable[int], coding: Description) -> dict[str, Any]:
    """What the description says of a tensor in parts."""
    return {"dtype": code, "shape": list(shape), **coding}


def _keys(value: Mapping[str, Any], wanted: set[str], what: str) -> None:
    if set(value) != wanted:
        raise ValueError(f"{what} must have {sorted(wanted)}, and has {sorted(value)}")


def _described(name: str, value: Any) -> Described:
    if not isinstance(value, dict) or not {"dtype", "shape", "coder"} <= set(value):
        raise ValueError(f"tensor {name!r} must have a dtype, a shape and a coder")
    code, shape = value.pop("dtype"), value.pop("shape")
    if not isinstance(code, str) or not isinstance(shape, list):
        raise ValueError(f"tensor {name!r} has dtype {code!r} and shape {shape!r}")
    if len(shape) > 64 or not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):
        raise ValueError(f"tensor {name!r} has a shape that is none")
    return Described(code, tuple(shape), value)


def _alias(name: str, value: Any) -> tuple[str, int]:
    if not (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
        and type(value[1]) is int and 0 <= value[1] < 1 << 62
    ):  # fmt: skip
        raise ValueError(f"alias {name!r} must give a name and a place")
    return value[0], value[1]


def separator_for(names: Iterable[str]) -> str:
    """Dots between a tensor's name and its parts': one, or more where a tensor itself is called like that.

    >>> separator_for(["fc.weight", "fc.bias"]), separator_for(["fc", "fc.codebook"])
    ('.', '..')
    """
    known = set(names)
    separator = "."
    while f"{KEY}{separator}checksums" in known or any(
        name.endswith(separator + role) and name.removesuffix(separator + role) in known
        for name in known
        for role in ROLES
    ):
        separator += "."
    return separator


class Sums:
    """CRC-32 of the header, and of every block of the bytes behind it, as they pass."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._sums: list[int] = []
        self._filled = block

    def header(self, text: memoryview | bytes) -> None:
        """The first thing that passes."""
        self._sums.append(zlib.crc32(text))

    def __call__(self, piece: memoryview | bytes) -> None:
        if not self._sums:
            self.header(piece)
            return
        rest = memoryview(piece).cast("B")
        while rest:
            if self._filled == self._block:
                self._sums.append(0)
                self._filled = 0
            taken = rest[: self._block - self._filled]
            self._sums[-1] = zlib.crc32(taken, self._sums[-1])
            self._filled += len(taken)
            rest = rest[len(taken) :]

    def array(self) -> Bytes:
        """All of them, little-endian."""
        return np.array(self._sums, "<u4").view(np.uint8)


def sums_size(nbytes: int, block: int = BLOCK) -> int:
    """Bytes of the checksums of that many bytes of data."""
    return 4 * (1 + -(-nbytes // block))
