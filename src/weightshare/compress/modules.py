"""What layers with packed weights have in common: indices and codebooks, and the weight when asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weightshare import checks
from weightshare.compress import kernels
from weightshare.compress.codebook import patterns, tensor_of
from weightshare.compress.decode import decode
from weightshare.compress.packing import bits_for
from weightshare.compress.weights import PackedWeight, bytes_for, pack_weight
from weightshare.training import inputs
from weightshare.training.vectors import Per, check_per

Some = TypeVar("Some", bound="CodebookModule")


class CodebookModule(nn.Module):
    """A layer whose weight is a buffer ``indices`` (packed, uint8) and a parameter ``codebook``.

    ``codebook`` has a row of values for each stretch of the weight that has values of its own: one row for
    the whole tensor, or one for each row of it. It can be trained: the derivative with respect to a value is
    the sum over the weights that share it; the indices stay. ``.to(dtype)``, ``.half()`` and so on round the
    values; the indices stay. :attr:`weight` is made anew whenever it is asked for.
    """

    codebook: nn.Parameter
    indices: Tensor

    def __init__(
        self, shape: tuple[int, ...], bias: bool, block: int | None, device: Any, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.block = None if block is None else inputs.whole("block", block, least=1)
        self.codebook = nn.Parameter(torch.zeros(1, 1, device=device, dtype=dtype))
        self.register_buffer("indices", torch.zeros(0, dtype=torch.uint8, device=device))
        if bias:
            self.bias = nn.Parameter(torch.zeros(shape[0], device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)

    @property
    def weight(self) -> Tensor:
        """The whole weight, a new tensor, bitwise what the codebook says; differentiable in the codebook."""
        return self.rows(0, self.shape[0])

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return bits_for(self.codebook.shape[1])

    def rows(self, lo: int, hi: int) -> Tensor:
        """Rows ``lo`` to ``hi - 1`` of the weight."""
        width = math.prod(self.shape[1:])
        length = math.prod(self.shape) // len(self.codebook)
        flat = decode(self.indices, self.codebook, length, lo * width, (hi - lo) * width)
        return flat.view(hi - lo, *self.shape[1:])

    def extra_repr(self) -> str:
        """The weight's shape, its codebooks, and what the index takes."""
        groups, k = self.codebook.shape
        each = f" in each of {groups} codebooks" if groups > 1 else ""
        block = "" if self.block is None else f", block={self.block}"
        bias = "" if self.bias is not None else ", bias=False"
        return f"{'x'.join(map(str, self.shape))}, {k} values{each}, {self.bits} bits{bias}{block}"

    def _filled(self: Some, packed: PackedWeight, like: Tensor) -> Some:
        """Take over a packed weight, on the device of ``like`` and of its dtype."""
        values = tensor_of(packed.values, like.dtype, packed.values.shape).to(like.device)
        self.codebook = nn.Parameter(values, requires_grad=like.requires_grad)
        self.indices = torch.from_numpy(packed.indices).to(like.device)
        return self

    def _dense_weight(self) -> nn.Parameter:
        return nn.Parameter(self.weight.detach(), requires_grad=self.codebook.requires_grad)

    def _in_blocks(self, step: int, apply: Callable[[int, int], Tensor], dim: int) -> Tensor:
        """``apply(lo, hi)`` for blocks of rows, put together along ``dim``.

        Where gradients are wanted the blocks are made again in the backward pass, so that no more than one
        is there at any time.
        """
        blocks = [(lo, min(lo + step, self.shape[0])) for lo in range(0, self.shape[0], step)]
        if torch.is_grad_enabled():
            parts: list[Any] = [
                checkpoint(apply, lo, hi, use_reentrant=False, preserve_rng_state=False) for lo, hi in blocks
            ]
            return torch.cat(parts, dim)
        return self._joined(blocks, apply, dim)

    def _joined(self, blocks: list[tuple[int, int]], apply: Callable[[int, int], Tensor], dim: int) -> Tensor:
        out: Tensor | None = None
        for lo, hi in blocks:
            part = apply(lo, hi)
            if out is None:
                sizes = list(part.shape)
                sizes[dim] = self.shape[0]
                out = part.new_empty(sizes)
            out.narrow(dim, lo, hi - lo).copy_(part)
        assert out is not None
        return out

    def _step(self, least: int = 1) -> int | None:
        """Rows in a block, a multiple of ``least``; ``None``: all at once."""
        if self.block is None or checks.opaque(self.codebook):
            return None
        rows = max(self.block // math.prod(self.shape[1:]) // least, 1) * least
        return rows if rows < self.shape[0] else None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Adopt the number of values and codebooks from what is loaded, once that is seen to be sound."""
        codebook, packed = (state_dict.get(prefix + name) for name in ("codebook", "indices"))
        if isinstance(codebook, Tensor) and isinstance(packed, Tensor):
            wrong = _unsound(self.shape, codebook, packed)
            if wrong:
                args[-1].append(f"{prefix}codebook and {prefix}indices: {wrong}")
                return
            if codebook.shape != self.codebook.shape:
                fresh = torch.empty_like(self.codebook, requires_grad=False).new_empty(codebook.shape)
                self.codebook = nn.Parameter(fresh, requires_grad=self.codebook.requires_grad)
            if packed.shape != self.indices.shape:
                self.indices = self.indices.new_empty(packed.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _unsound(shape: tuple[int, ...], codebook: Tensor, packed: Tensor) -> str | None:
    """What is wrong with a codebook and packed indices for a weight of that shape."""
    count = math.prod(shape)
    if codebook.ndim != 2 or 0 in codebook.shape or count % len(codebook) or not codebook.is_floating_point():
        return f"no codebooks for a weight of shape {shape}: {codebook.dtype}, {tuple(codebook.shape)}"
    bits = bits_for(codebook.shape[1])
    if packed.dtype != torch.uint8 or packed.shape != (bytes_for(count, bits),):
        return (
            f"{count} indices of {bits} bits are {bytes_for(count, bits)} bytes, "
            f"got {packed.dtype}, {tuple(packed.shape)}"
        )
    if bits and not packed.is_meta:
        numbers = np.empty(count, np.uint16)
        most = kernels.unpack_slice(packed.cpu().numpy(), bits, 0, numbers)
        if most >= codebook.shape[1]:
            return f"index {most} is not a place in a codebook of {codebook.shape[1]} values"
    return None


def best_packed(weight: Tensor, per: Per | None) -> PackedWeight | None:
    """The smallest way to pack a weight that is smaller than it; ``per=None`` tries tensor and row."""
    bits = patterns(weight)
    best, below = None, bits.nbytes
    for groups in _groupings(weight, per):
        packed = pack_weight(bits, groups, below)
        if packed is not None:
            best, below = packed, packed.nbytes
    return best


def _groupings(weight: Tensor, per: Per | None) -> Iterator[int]:
    """In how many stretches the weight may be packed."""
    if per is None or per == "tensor":
        yield 1
    if weight.numel() and (per == "row" or (per is None and len(weight) > 1)):
        yield len(weight)
    if isinstance(per, int) and weight.numel() and weight.numel() % per == 0:
        yield weight.numel() // per


def check_stretch(per: Any) -> Per | None:
    """Accept what a codebook can be for: ``None``, the tensor, a row, or a block of consecutive weights."""
    if per is None:
        return None
    if check_per(per) in ("column", "group"):
        raise ValueError(f"per must be None, 'tensor', 'row' or a block of that many weights, got {per!r}")
    return per  # type: ignore[no-any-return]


def must_pack(weight: Tensor, per: Per | None) -> PackedWeight:
    """:func:`best_packed`, or ``ValueError`` where nothing is smaller than the weight."""
    checks.float_tensor("weight", weight)
    packed = best_packed(weight, check_stretch(per))
    if packed is None:
        raise ValueError(
            f"the weight of shape {tuple(weight.shape)} has too many distinct values for a codebook to be "
            f"smaller than it; tie it first (weightshare.tie), or keep the layer as it is"
        )
    return packed
