"""The image operations of AutoAugment, each for a whole batch of uint8 images with a magnitude for each.

They follow Pillow's arithmetic (its ``Image.transform``, ``ImageOps`` and ``ImageEnhance``), which is what
the policies were searched with; the tests compare with Pillow itself, value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Operation = Callable[[Tensor, Tensor], Tensor]

_FIXED = 65536  # Pillow's affine maps have 16 binary places


def pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at (N, h, w) rows and columns; outside of an image there is black."""
    height, width = images.shape[-2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = (rows * width + columns).masked_fill_(~inside, 0).flatten(1)[:, None]
    found = images.flatten(2).gather(2, index.expand(-1, images.shape[1], -1))
    return (found * inside.flatten(1)[:, None]).view(*images.shape[:2], *rows.shape[1:])


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Pixel (x, y) becomes the one nearest to (a x + b y + c, d x + e y + f), for rows (a, ..., f)."""
    height, width = images.shape[-2:]
    a, b, c, d, e, f = matrix.double().unbind(1)
    c, f = c + 0.5 * (a + b), f + 0.5 * (d + e)
    a, b, c, d, e, f = ((v * _FIXED + 0.5).floor().long()[:, None, None] for v in (a, b, c, d, e, f))
    x, y = torch.arange(width)[None, None, :], torch.arange(height)[None, :, None]
    return pick(images, (d * x + e * y + f) >> 16, (a * x + b * y + c) >> 16)


def _matrix(entries: dict[int, Tensor], count: int) -> Tensor:
    matrix = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).repeat(count, 1)
    for place, value in entries.items():
        matrix[:, place] = value.double()
    return matrix


def shear_x(images: Tensor, amount: Tensor) -> Tensor:
    """Move each row by ``amount`` of its number."""
    return affine(images, _matrix({1: amount}, len(images)))


def shear_y(images: Tensor, amount: Tensor) -> Tensor:
    """Move each column by ``amount`` of its number."""
    return affine(images, _matrix({3: amount}, len(images)))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move to the left."""
    return affine(images, _matrix({2: pixels}, len(images)))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move upwards."""
    return affine(images, _matrix({5: pixels}, len(images)))


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn around the centre, counter-clockwise."""
    angle = -degrees.double() * (math.pi / 180.0)
    cos, sin = angle.cos(), angle.sin()
    y, x = (size / 2.0 for size in images.shape[-2:])
    entries = {0: cos, 1: sin, 2: x - cos * x - sin * y, 3: -sin, 4: cos, 5: y + sin * x - cos * y}
    return affine(images, _matrix(entries, len(images)))


def invert(images: Tensor, _: Tensor) -> Tensor:
    """Negatives."""
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Negatives of what is at least as bright as the threshold."""
    return torch.where(images < _each(threshold), images, 255 - images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits."""
    return images & _each(256 - 2 ** (8 - bits.long())).to(torch.uint8)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel so that it reaches from 0 to 255."""
    flat = images.flatten(2)
    low, high = (v.double()[:, :, None] for v in (flat.amin(2), flat.amax(2)))
    scale = 255.0 / (high - low).clamp_min(1.0)
    stretched = (flat * scale - low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, flat).view_as(images)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Map each channel so that its values are spread evenly."""
    flat = images.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long).scatter_add_(2, flat, torch.ones_like(flat))
    last = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    before = counts.cumsum(2) - counts
    table = ((step // 2 + before) // step.clamp_min(1)).clamp_(max=255)
    mapped = table.gather(2, flat)
    return torch.where(step > 0, mapped, flat).to(torch.uint8).view_as(images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from black."""
    return _blend(torch.zeros_like(images), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Away from grey."""
    return _blend(_grey(images).expand_as(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from the mean brightness."""
    mean = (_grey(images).double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).to(torch.uint8)
    return _blend(mean.expand_as(images), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from a smoothed image (3 x 3, the centre counts five times; the border stays)."""
    sums = functional.avg_pool2d(images.double(), 3, stride=1, divisor_override=1)
    inner = images[:, :, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = ((2 * (sums.long() + 4 * inner.long()) + 13) // 26).to(torch.uint8)
    return _blend(smooth, images, factor)


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.long().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """On the line through two images: ``start`` at 0, ``end`` at 1, and beyond."""
    a, b = start.float(), end.float()
    return (a + _each(factor.float()) * (b - a)).clamp_(0, 255).to(torch.uint8)
