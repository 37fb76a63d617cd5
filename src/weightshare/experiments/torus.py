"""MNIST on a torus: images that are rolled once, three variants of it, and how symmetric predictions are.

An image is 28 x 28 pixels averaged to 14 x 14 (``interpolate(mode="area")``; other datasets keep a side of
at most 14), normalised, and rolled by a random 2-D shift. Two variants shuffle the pixels by a permutation P:

* ``no-locality``: P, then the roll. The task is invariant to rolls, but neighbours mean nothing.
* ``no-symmetry``: the roll, then P. The task is invariant to ``P roll P^-1`` and to no roll.

``no-symmetry`` reorders the pixels of the plain images, all in the same way: to a network without
convolutions that is a permutation of the columns of its first layer, and nothing else. ``no-locality`` is
not such a reordering: ``roll_s P = (roll_s P roll_s^-1) roll_s``, a permutation that depends on the shift of
the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from weightshare.experiments.data import Dataset

SIDE = 14
TEST_SEED = 20_240_502
"""The test images are rolled in the same way in all runs."""


@dataclass(frozen=True)
class TorusData:
    """Training and test images of one run, (N, 1, side, side) float32, and their labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    permutation: Tensor | None
    """For ``no-symmetry``: pixel ``permutation[i]`` of a plain image is pixel i here."""

    @property
    def side(self) -> int:
        """Pixels along an edge."""
        return int(self.train.shape[-1])


def make(dataset: Dataset, variant: str, seed: int, train: Tensor | None = None) -> TorusData:
    """The torus version of a dataset; ``train`` are the indices of the training images to use.

    The shifts of the training images and the permutation follow from ``seed``; a training image has the same
    shift whichever others are used.
    """
    generator = torch.Generator().manual_seed(seed)
    images = shrink(dataset.train_images, dataset.mean[0], dataset.std[0])
    test = shrink(dataset.test_images, dataset.mean[0], dataset.std[0])
    side = images.shape[-1]
    permutation = torch.randperm(side * side, generator=generator)
    shifts = torch.randint(side, (len(images), 2), generator=generator)
    chosen = torch.arange(len(images)) if train is None else train
    test_shifts = torch.randint(side, (len(test), 2), generator=torch.Generator().manual_seed(TEST_SEED))

    def place(images: Tensor, shifts: Tensor) -> Tensor:
        if variant == "no-locality":
            return roll(permute(images, permutation), shifts)
        rolled = roll(images, shifts)
        return permute(rolled, permutation) if variant == "no-symmetry" else rolled

    return TorusData(
        place(images[chosen], shifts[chosen]),
        dataset.train_labels[chosen],
        place(test, test_shifts),
        dataset.test_labels,
        permutation if variant == "no-symmetry" else None,
    )


def shrink(images: Tensor, mean: float, std: float) -> Tensor:
    """Grey uint8 images (N, 1, side, side) as normalised float32, of 14 x 14 pixels where they are larger."""
    scaled = images.to(torch.float32) / 255.0
    if scaled.shape[-1] > SIDE:
        scaled = functional.interpolate(scaled, size=(SIDE, SIDE), mode="area")
    return (scaled - mean) / std


def roll(images: Tensor, shifts: Tensor) -> Tensor:
    """Roll each image by its own (rows, columns), as ``torch.roll`` does.

    >>> x = torch.arange(9.0).reshape(1, 1, 3, 3)
    >>> torch.equal(roll(x, torch.tensor([[1, 2]])), x.roll((1, 2), dims=(2, 3)))
    True
    """
    side = images.shape[-1]
    places = torch.arange(side)
    rows = (places - shifts[:, :1]) % side
    columns = (places - shifts[:, 1:]) % side
    index = (rows[:, :, None] * side + columns[:, None, :]).flatten(1)
    return images.flatten(2).gather(2, index[:, None, :]).view_as(images)


def permute(images: Tensor, permutation: Tensor) -> Tensor:
    """Pixel ``permutation[i]`` becomes pixel i."""
    return images.flatten(2)[:, :, permutation].view_as(images)


def translations(side: int, permutation: Tensor | None = None) -> Tensor:
    """All ``side^2`` translations as reorderings of the pixels, the identity first: (side^2, side^2) indices.

    ``images.flatten(2)[:, :, t]`` translates every image by translation t. Given the permutation of
    ``no-symmetry``, the plain image behind a shuffled one is translated.
    """
    shifts = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    pixels = torch.arange(side * side).reshape(1, 1, side, side).expand(side * side, -1, -1, -1)
    group = roll(pixels, shifts).flatten(1)
    if permutation is None:
        return group
    place = torch.argsort(permutation)  # where a plain pixel is in the shuffled image
    return place[group[:, permutation]]


def asymmetric(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    group: Tensor,
    *,
    batch: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Which images have two translations (of the ``group``) with different predictions.

    An image does when some translation's prediction is not that of the image as it is. Images are looked at
    under one translation after another, until they have shown a difference: the answer is exact, and the
    costly images are those that are symmetric. ``progress(done, total)`` counts translations.
    """

    def all_predictions(images: Tensor) -> Tensor:
        return torch.cat([predict(part) for part in torch.split(images, batch)])

    first = all_predictions(images)
    found = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    rest = torch.arange(len(images), device=images.device)
    # Far translations early: they differ the most from the identity.
    order = torch.randperm(len(group) - 1, generator=torch.Generator().manual_seed(0)) + 1
    for done, t in enumerate(order.tolist()):
        if progress is not None:
            progress(done + 1, len(group))
        if not len(rest):
            continue
        moved = torch.cat(
            [predict(permute(images[part], group[t].to(images.device))) for part in torch.split(rest, batch)]
        )
        differs = moved != first[rest]
        found[rest[differs]] = True
        rest = rest[~differs]
    if progress is not None:
        progress(len(group), len(group))
    return found


def asymmetry(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    group: Tensor,
    *,
    batch: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """The paper's prediction asymmetry: the share of :func:`asymmetric` images."""
    found = asymmetric(predict, images, group, batch=batch, progress=progress)
    return int(found.sum()) / len(found)
