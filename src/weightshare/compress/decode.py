"""From packed indices and codebooks to weights: compiled on the CPU, plain tensor operations elsewhere.

Both maps here are linear in the codebooks, and each is the other's derivative: to look values up, and to add
up what belongs to one value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from weightshare import checks
from weightshare.compress import kernels
from weightshare.compress.codebook import patterns, tensor_of
from weightshare.compress.packing import bits_for, slices, take
from weightshare.kernels.threads import run, split


def decode(packed: Tensor, codebook: Tensor, length: int, start: int, count: int) -> Tensor:
    """Weights ``start`` to ``start + count - 1``, flat; ``length`` of them in a row have one codebook (a row
    of ``codebook``). Differentiable in the codebook, also twice.

    >>> decode(torch.tensor([57, 1], dtype=torch.uint8), torch.tensor([[5.0, 6.0, 7.0, 8.0]]), 5, 1, 4)
    tensor([7., 8., 5., 6.])
    """
    if codebook.device.type != "cpu" or checks.opaque(codebook):
        return traced(packed, codebook, length, start, count)
    if torch.is_grad_enabled() and codebook.requires_grad:
        return _Decode.apply(codebook, packed, length, start, count)  # type: ignore[no-untyped-call, no-any-return]
    return _decode(packed, codebook, length, start, count)


def traced(packed: Tensor, codebook: Tensor, length: int, start: int, count: int) -> Tensor:
    """:func:`decode` in tensor operations that compile and export: table look-ups (ONNX: Gather)."""
    groups, k = codebook.shape
    bits = bits_for(k)
    if bits == 0:
        return codebook.expand(groups, length).contiguous().view(-1)[start : start + count]
    if groups == 1 and bits in (1, 2, 4, 8):  # a byte is looked up at once
        entries = digits(bits, packed.device).clamp(max=k - 1)
        table = F.embedding(entries, codebook.view(k, 1)).flatten(1)
        first, per = start * bits // 8, 8 // bits
        some = packed[first : (start + count + per - 1) // per].to(torch.int32)
        return F.embedding(some, table).flatten()[start - first * per :][:count]
    numbers = unpacked(packed, bits, start, count)
    if groups > 1:
        firsts = torch.arange(0, groups * k, k, dtype=torch.int32, device=packed.device).unsqueeze(1)
        if count == groups * length:
            numbers = (numbers.view(groups, length) + firsts).view(-1)
        else:
            places = torch.arange(start, start + count, device=packed.device)
            numbers = numbers + firsts[places.div(length, rounding_mode="floor"), 0]
    return F.embedding(numbers, codebook.reshape(-1, 1)).flatten()


def digits(bits: int, device: torch.device) -> Tensor:
    """The indices that each of the 256 bytes holds."""
    byte = torch.arange(256, dtype=torch.int32, device=device).unsqueeze(1)
    weight = torch.tensor([1 << at for at in range(0, 8, bits)], dtype=torch.int32, device=device)
    return byte.div(weight, rounding_mode="floor").remainder(1 << bits)


def unpacked(packed: Tensor, bits: int, start: int, count: int) -> Tensor:
    """Indices ``start`` to ``start + count - 1`` as int32, in tensor operations."""
    first = start // 8
    some = packed[first * bits : -(-(start + count) // 8) * bits].to(torch.int32).view(-1, bits)
    columns = []
    for t in range(8):
        byte, shift = divmod(t * bits, 8)
        number = some[:, byte].div(1 << shift, rounding_mode="floor") if shift else some[:, byte]
        for more in range(1, -(-(shift + bits) // 8)):
            number = number + some[:, byte + more] * (1 << (8 * more - shift))
        columns.append(number.remainder(1 << bits))
    return torch.stack(columns, 1).flatten()[start - first * 8 :][:count]


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, codebook: Tensor, packed: Tensor, length: int, start: int, count: int) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.where, ctx.form = (length, start, count), (codebook.shape, codebook.dtype)
        return _decode(packed, codebook, length, start, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        return _Add.apply(grad, packed, ctx.form, *ctx.where), None, None, None, None  # type: ignore[no-untyped-call]


class _Add(torch.autograd.Function):
    """What belongs to each value, added up in float64."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, packed: Tensor, form: Any, length: int, start: int, count: int
    ) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.where, (shape, dtype) = (length, start, count), form
        sums = _sums(grad, packed, shape, length, start)
        return torch.from_numpy(sums).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (packed,) = ctx.saved_tensors
        return decode(packed, grad.contiguous(), *ctx.where), None, None, None, None, None


def _decode(packed: Tensor, codebook: Tensor, length: int, start: int, count: int) -> Tensor:
    tables, stream = patterns(codebook).reshape(codebook.shape), packed.numpy()
    bits = bits_for(tables.shape[1])
    if len(tables) == 1:
        return tensor_of(take(stream, bits, tables[0], count, start), codebook.dtype, (count,))
    out = np.empty(count, tables.dtype)
    most = np.zeros(max(len(slices(count)), 1), np.int64)

    def work(number: int, lo: int, hi: int) -> None:
        most[number] = kernels.take_rows(stream, bits, start + lo, tables, length, out[lo:hi])

    run([partial(work, i, lo, hi) for i, (lo, hi) in enumerate(slices(count))], torch.get_num_threads())
    if most.max() >= tables.shape[1]:
        raise ValueError(f"index {most.max()} is not a place in codebooks of {tables.shape[1]} values")
    return tensor_of(out, codebook.dtype, (count,))


def _sums(
    grad: Tensor, packed: Tensor, shape: tuple[int, ...], length: int, start: int
) -> NDArray[np.float64]:
    """One table of sums for each thread, and these added up."""
    flat = grad.detach().reshape(-1)
    values = (flat if flat.dtype == torch.float64 else flat.to(torch.float32)).contiguous().numpy()
    parts = split(values.size, torch.get_num_threads())
    sums, stream, bits = np.zeros((max(len(parts), 1), *shape)), packed.numpy(), bits_for(shape[1])

    def work(number: int, lo: int, hi: int) -> None:
        kernels.add_rows(stream, bits, start + lo, values[lo:hi], length, sums[number])

    run([partial(work, i, lo, hi) for i, (lo, hi) in enumerate(parts)], len(parts))
    total: NDArray[np.float64] = sums.sum(axis=0)
    return total
