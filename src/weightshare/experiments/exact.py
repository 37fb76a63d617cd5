"""The invariant network in exact arithmetic: its prediction for a translated image is its prediction.

A circular convolution, a function of each position and a sum over all positions do not care about a
translation; floating-point sums do, since their order changes with it, and an image whose two best classes
are close can change sides by rounding. Here batch norm is folded into the convolutions, and weights and
activations are rounded to multiples of powers of two, so coarse that every product and every partial sum
is a whole number below 2^53 of the product of the two units. Then float64 adds without rounding, any order
gives the same sum, and what is left is a network (the same to about six decimals) that is invariant as it
is computed. Its prediction asymmetry is counted like any other, over all translations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from weightshare.experiments.models import TorusCNN

EXACT = 2.0**53  # whole numbers of float64 up to here are exact


class ExactCNN:
    """The predictions of a :class:`TorusCNN` (as it evaluates) for images with entries up to ``largest``.

    >>> _ = torch.manual_seed(0)
    >>> model = TorusCNN(side=6, width=2).eval()
    >>> x = torch.randn(5, 1, 6, 6)
    >>> exact = ExactCNN(model, largest=float(x.abs().max()))
    >>> bool((exact.logits(x) - model(x)).abs().max() < 1e-4)
    True
    >>> torch.equal(exact.logits(x), exact.logits(x.roll((2, 5), dims=(2, 3))))
    True
    """

    def __init__(self, model: TorusCNN, largest: float) -> None:
        self.side = model.side
        self.largest = largest
        self._first = _Affine(*_folded(model.layer1, model.norm1), largest)
        self._second = _Affine(*_folded(model.layer2, model.norm2), self._first.bound)
        positions = self.side * self.side
        weight, bias = model.output.weight.detach().double(), model.output.bias.detach().double()
        total = positions * self._second.bound
        self._pooled_unit = _unit(total, 52)
        self._output = _Affine(weight / positions, bias, total)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Float64 logits, bitwise the same for all translations of an image."""
        if float(x.abs().max()) > self.largest:
            raise ValueError(f"x must be within {self.largest:g}, the largest entry that was announced")
        x = self._convolve(self._first, x.double()).relu()
        x = self._convolve(self._second, x).relu()
        pooled = _round(x, self._pooled_unit).sum(dim=(2, 3))
        return self._output(pooled.mT).mT

    def __call__(self, x: Tensor) -> Tensor:
        """The class of each image."""
        return self.logits(x).argmax(dim=1)

    def _convolve(self, layer: _Affine, x: Tensor) -> Tensor:
        padded = functional.pad(x, (1, 1, 1, 1), mode="circular")
        out: Tensor = layer(functional.unfold(padded, 3))
        return out.view(*out.shape[:2], self.side, self.side)


class _Affine:
    """``weight @ x + bias`` without rounding error, for x rounded to its unit and at most ``largest``."""

    def __init__(self, weight: Tensor, bias: Tensor, largest: float) -> None:
        reach = float((weight.abs().sum(dim=1) * largest + bias.abs()).max())
        self.bound = 1.01 * reach + 1e-6  # of what comes out, with room for the rounding of what goes in
        bits = _bits(self.bound, 50)
        self.unit = 2.0 ** -(bits // 2)  # of x
        weight_unit = 2.0 ** -(bits - bits // 2)
        self.weight = _round(weight, weight_unit)
        self.bias = _round(bias, self.unit * weight_unit)[:, None]
        sums = self.weight.abs().sum(dim=1) * (largest + self.unit) + self.bias[:, 0].abs()
        if float(sums.max()) / (self.unit * weight_unit) >= EXACT:
            raise ValueError(
                f"weights and images are too far apart in size to add exactly (sums up to {reach:g})"
            )

    def __call__(self, x: Tensor) -> Tensor:
        """For columns ``x``: (..., in, positions) to (..., out, positions)."""
        return self.weight @ _round(x, self.unit) + self.bias


def _folded(layer: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Convolution and batch norm (by its running statistics) as one affine map of 3 x 3 patches."""
    assert layer.bias is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = layer.weight.detach().double().flatten(1) * scale[:, None]
    bias = (layer.bias.detach().double() - norm.running_mean.double()) * scale + norm.bias.detach().double()
    return weight, bias


def _bits(bound: float, bits: int) -> int:
    """How many binary places leave ``bound`` below 2^bits units."""
    return bits - math.ceil(math.log2(max(bound, 2.0**-bits)))


def _unit(bound: float, bits: int) -> float:
    return float(2.0 ** -_bits(bound, bits))


def _round(x: Tensor, unit: float) -> Tensor:
    """To the nearest multiple of a power of two: exact but for the rounding that is asked for."""
    return (x / unit).round() * unit
