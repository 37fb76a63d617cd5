"""A Conv2d layer that holds a codebook and packed indices instead of its weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weightshare.compress.modules import CodebookModule, must_pack
from weightshare.training.vectors import Per

_SETTINGS = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"
)  # fmt: skip


class CodebookConv2d(CodebookModule):
    """``torch.nn.Conv2d`` with its weight as packed indices into a codebook.

    The arguments are those of ``Conv2d``; ``block``, :meth:`from_dense` and all else are as in
    :class:`CodebookLinear`, a row being what belongs to one output channel. (Blocks are whole ``groups``.)

    >>> import torch, weightshare as ws
    >>> layer = torch.nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular", bias=False)
    >>> with torch.no_grad(): _ = layer.weight.copy_(layer.weight.sign())
    >>> ws.CodebookConv2d.from_dense(layer)
    CodebookConv2d(8x3x3x3, 2 values, 1 bits, bias=False, padding=(1, 1), padding_mode=circular)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Any = "zeros",
        *,
        block: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        plain = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, False, padding_mode,
            device="meta",
        )  # fmt: skip
        super().__init__(tuple(plain.weight.shape), bias, block, device, dtype)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, plain.kernel_size
        self.stride, self.padding, self.dilation = plain.stride, plain.padding, plain.dilation
        self.groups, self.padding_mode = groups, plain.padding_mode
        self._around_input = plain._reversed_padding_repeated_twice

    @classmethod
    def from_dense(
        cls, layer: nn.Conv2d, *, per: Per | None = None, block: int | None = None
    ) -> CodebookConv2d:
        """A copy of a Conv2d with the same weight, bit for bit; the bias is the same parameter."""
        return cls._around(layer, block)._filled(must_pack(layer.weight, per), layer.weight)

    @classmethod
    def _around(cls, layer: nn.Conv2d, block: int | None) -> CodebookConv2d:
        """What is not the weight."""
        new = cls(**{name: getattr(layer, name) for name in _SETTINGS}, bias=False, block=block)
        new.bias = layer.bias  # type: ignore[assignment]
        return new.train(layer.training)

    def to_dense(self) -> nn.Conv2d:
        """The Conv2d with this weight; the bias is the same parameter."""
        new = nn.Conv2d(**{name: getattr(self, name) for name in _SETTINGS}, bias=False, device="meta")
        new.weight, new.bias = self._dense_weight(), self.bias
        return new.train(self.training)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of ``input`` with the weight, plus bias."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._around_input, mode=self.padding_mode), 0
        step = self._step(least=self.out_channels // self.groups if self.groups > 1 else 1)
        if step is None:
            return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        out, into = self.out_channels // self.groups, self.in_channels // self.groups

        def apply(lo: int, hi: int) -> Tensor:
            bias = None if self.bias is None else self.bias[lo:hi]
            some = input.narrow(-3, lo // out * into, (hi - lo) // out * into) if self.groups > 1 else input
            groups = (hi - lo) // out if self.groups > 1 else 1
            return F.conv2d(some, self.rows(lo, hi), bias, self.stride, padding, self.dilation, groups)

        return self._in_blocks(step, apply, dim=-3)

    def extra_repr(self) -> str:
        """Also the settings that are not the default."""
        plain = nn.Conv2d(1, 1, 1, device="meta")
        given = {name: getattr(self, name) for name in _SETTINGS[3:]}
        other = [f"{name}={value}" for name, value in given.items() if value != getattr(plain, name)]
        return ", ".join([super().extra_repr(), *other])
