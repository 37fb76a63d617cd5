"""IDX files, the format of MNIST: a magic number, the sizes, the bytes; gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_UNSIGNED_BYTE = 0x08


def read(path: Path) -> Tensor:
    """The uint8 array in an IDX file; anything but exactly that is an error that says what is wrong."""
    return parse(path.read_bytes(), str(path))


def parse(data: bytes, source: str) -> Tensor:
    """Like :func:`read`, from memory; ``source`` is named in errors.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]), "three labels")
    tensor([5, 0, 4], dtype=torch.uint8)
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{source} is a broken gzip file: {error}; fetch it again") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or not data[3]:
        raise ValueError(
            f"{source} is not an IDX file of bytes: it starts with {data[:4].hex(' ') or 'nothing'}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"{source} is cut short: it ends in its header; fetch it again")
    sizes = np.frombuffer(data[4:start], dtype=">u4").tolist()
    if len(data) - start != math.prod(sizes):
        raise ValueError(
            f"{source} is cut short or too long: {len(data) - start} bytes for an array of shape "
            f"{tuple(sizes)}; fetch it again"
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[start:].reshape(sizes).clone()


def encode(array: Tensor) -> bytes:
    """The inverse of :func:`parse`."""
    head = bytes([0, 0, _UNSIGNED_BYTE, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return head + array.to(torch.uint8).contiguous().numpy().tobytes()
