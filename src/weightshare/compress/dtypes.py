"""The dtypes that safetensors has, under its own names, and which of them this PyTorch knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# Name in a header: name in PyTorch, bytes of an element of the PyTorch tensor.
_KNOWN = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F4": ("float4_e2m1fn_x2", 1), "C64": ("complex64", 8), "BOOL": ("bool", 1),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1),
}  # fmt: skip

SIZES = {code: size for code, (_, size) in _KNOWN.items()}
_TORCH = {code: getattr(torch, name) for code, (name, _) in _KNOWN.items() if hasattr(torch, name)}
_CODES = {dtype: code for code, dtype in _TORCH.items()}


def code_of(dtype: torch.dtype) -> str | None:
    """The name of a dtype in a header; ``None`` for what safetensors does not have.

    >>> code_of(torch.bfloat16)
    'BF16'
    """
    return _CODES.get(dtype)


def dtype_of(code: str) -> torch.dtype | None:
    """The PyTorch dtype of that name; ``None`` if this PyTorch does not have it."""
    return _TORCH.get(code)


def written_shape(code: str, shape: Sequence[int]) -> list[int]:
    """The shape as it stands in a header: safetensors counts the two halves of an F4 byte."""
    shape = list(shape)
    return [*shape[:-1], 2 * shape[-1]] if code == "F4" and shape else shape


def element_shape(code: str, written: Sequence[int]) -> tuple[int, ...] | None:
    """The shape in elements of the PyTorch dtype; ``None`` if an F4 row does not end with a byte."""
    if code != "F4":
        return tuple(written)
    return None if not written or written[-1] % 2 else (*written[:-1], written[-1] // 2)


def byte_count(code: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of that many elements."""
    return math.prod(shape) * SIZES[code]
