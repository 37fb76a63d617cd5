"""A Linear layer that holds a codebook and packed indices instead of its weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weightshare.compress.modules import CodebookModule, must_pack
from weightshare.training.vectors import Per


class CodebookLinear(CodebookModule):
    """``torch.nn.Linear`` with its weight as packed indices into a codebook.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        bias: whether there is a bias.
        block: ``None``: the whole weight is expanded for each call, and the outputs are bitwise those of
            ``Linear`` with that weight. A number: at most so many weights (in whole rows) are expanded at a
            time, also in the backward pass; outputs agree within rounding. Traced programs
            (``torch.compile``, export) expand the whole weight.
        device: where the tensors are.
        dtype: of the codebook and of the bias.

    A new one has the weight 0 (one value); make one of a layer with :meth:`from_dense`, or load a
    ``state_dict``, whose codebook it adopts.

    >>> import torch, weightshare as ws
    >>> layer = torch.nn.Linear(8, 4)
    >>> with torch.no_grad(): _ = layer.weight.copy_(layer.weight.sign())
    >>> small = ws.CodebookLinear.from_dense(layer)
    >>> small
    CodebookLinear(4x8, 2 values, 1 bits)
    >>> torch.equal(small(torch.ones(1, 8)), layer(torch.ones(1, 8)))
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        block: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((out_features, in_features), bias, block, device, dtype)
        self.in_features, self.out_features = in_features, out_features

    @classmethod
    def from_dense(
        cls, layer: nn.Linear, *, per: Per | None = None, block: int | None = None
    ) -> CodebookLinear:
        """A copy of a Linear with the same weight, bit for bit; the bias is the same parameter.

        ``per`` says for what there is a codebook: the ``"tensor"``, each ``"row"``, each block of so many
        consecutive weights; ``None`` takes the smaller of the first two. Raises ``ValueError`` where no
        codebook is smaller than the weight.
        """
        return cls._around(layer, block)._filled(must_pack(layer.weight, per), layer.weight)

    @classmethod
    def _around(cls, layer: nn.Linear, block: int | None) -> CodebookLinear:
        """What is not the weight."""
        new = cls(layer.in_features, layer.out_features, False, block=block)
        new.bias = layer.bias
        return new.train(layer.training)

    def to_dense(self) -> nn.Linear:
        """The Linear with this weight; the bias is the same parameter."""
        new = nn.Linear(self.in_features, self.out_features, False, device="meta")
        new.weight, new.bias = self._dense_weight(), self.bias
        return new.train(self.training)

    def forward(self, input: Tensor) -> Tensor:
        """``input @ weight.T + bias``."""
        step = self._step()
        if step is None:
            return F.linear(input, self.weight, self.bias)

        def apply(lo: int, hi: int) -> Tensor:
            return F.linear(input, self.rows(lo, hi), None if self.bias is None else self.bias[lo:hi])

        return self._in_blocks(step, apply, dim=-1)
