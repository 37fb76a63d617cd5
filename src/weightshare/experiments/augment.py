"""The augmentation of the CIFAR10 experiments, on batches of tensors: AutoAugment, crop, flip, Cutout.

All randomness is drawn from PyTorch's global generator, in the same amounts whatever is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weightshare.experiments import operations
from weightshare.experiments.operations import Operation, pick

PADDING = 4
HOLE = 16

_Step = tuple[str, float, int]

# AutoAugment's policy for CIFAR10 (Cubuk et al. 2019, appendix): one of 25 pairs is drawn for an image; each
# of its two operations is applied with its probability, at a level from 0 to 9.
POLICY: tuple[tuple[_Step, _Step], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)

# What a level means, as in the code of the paper's authors.
_MAGNITUDES: dict[str, Callable[[int], float]] = {
    "shear_y": lambda level: 0.03 * level,
    "translate_x": float,
    "translate_y": float,
    "rotate": lambda level: float(3 * level),
    "solarize": lambda level: 256.0 - int(25.6 * level),
    "posterize": lambda level: 4.0 - int(0.4 * level),
    **dict.fromkeys(("contrast", "color", "brightness", "sharpness"), lambda level: 0.18 * level + 0.1),
}
_MIRRORED = ("shear_y", "translate_x", "translate_y", "rotate")  # either way, at random

_NAMES = sorted({name for pair in POLICY for name, _, _ in pair})
_OPERATIONS: list[Operation] = [getattr(operations, name) for name in _NAMES]
_CHOICE = torch.tensor([[_NAMES.index(name) for name, _, _ in pair] for pair in POLICY])
_CHANCE = torch.tensor([[chance for _, chance, _ in pair] for pair in POLICY])
_VALUE = torch.tensor(
    [[_MAGNITUDES.get(name, float)(level) for name, _, level in pair] for pair in POLICY],
    dtype=torch.float64,
)
_SIGNED = torch.tensor([[name in _MIRRORED for name, _, _ in pair] for pair in POLICY])


def autoaugment(images: Tensor) -> Tensor:
    """A sub-policy for each uint8 image, drawn and applied."""
    count = len(images)
    drawn = torch.randint(len(POLICY), (count,))
    active = torch.rand(count, 2) < _CHANCE[drawn]
    mirrored = _SIGNED[drawn] & (torch.rand(count, 2) < 0.5)
    values = torch.where(mirrored, -_VALUE[drawn], _VALUE[drawn])
    choice = torch.where(active, _CHOICE[drawn], -1)
    out = images.clone()
    for stage in (0, 1):
        for number, operation in enumerate(_OPERATIONS):
            mine = (choice[:, stage] == number).nonzero()[:, 0]
            if len(mine):
                out[mine] = operation(out[mine], values[mine, stage])
    return out


def crop_and_flip(images: Tensor, padding: int = PADDING) -> Tensor:
    """Pad with black, cut out at random a window of the old size, and mirror every other image."""
    count, _, height, width = images.shape
    offsets = torch.randint(2 * padding + 1, (count, 2, 1)) - padding
    flip = torch.rand(count, 1) < 0.5
    rows = torch.arange(height) + offsets[:, 0]
    columns = torch.arange(width) + offsets[:, 1]
    columns = torch.where(flip, columns.flip(1), columns)
    shape = (count, height, width)
    return pick(images, rows[:, :, None].expand(shape), columns[:, None, :].expand(shape))


def cutout(images: Tensor, hole: int = HOLE) -> Tensor:
    """Set a square around a random pixel to 0, the mean of normalised images; the border may cut it."""
    count, _, height, width = images.shape
    centre = torch.stack([torch.randint(height, (count,)), torch.randint(width, (count,))])[:, :, None]
    low, high = centre - hole // 2, centre + hole // 2
    rows = (torch.arange(height) >= low[0]) & (torch.arange(height) < high[0])
    columns = (torch.arange(width) >= low[1]) & (torch.arange(width) < high[1])
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def augment(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """A training batch: AutoAugment, crop and flip on uint8; normalised; then Cutout."""
    return cutout(normalize(crop_and_flip(autoaugment(images)), mean, std))


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Uint8 to float32 with mean 0 and variance 1, by the numbers given for each channel."""
    centre, spread = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    return (images / 255.0 - centre) / spread
