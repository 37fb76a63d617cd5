"""What is known of each dataset, so that what was fetched can be checked: counts, shapes, means, SHA-256."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from weightshare import checks
from weightshare.experiments.data.dataset import Dataset


@dataclass(frozen=True)
class Facts:
    """``mean`` and ``std`` are those that images are normalised by, as in the paper's code, per channel."""

    title: str
    train: int
    test: int
    channels: int
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


FACTS = {
    "mnist": Facts("MNIST: handwritten digits", 60_000, 10_000, 1, 28, (0.1307,), (0.3081,)),
    "fashion-mnist": Facts("Fashion-MNIST: clothes", 60_000, 10_000, 1, 28, (0.2860,), (0.3530,)),
    "cifar10": Facts(
        "CIFAR10: small photographs",
        50_000, 10_000, 3, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010),
    ),
    "digits": Facts("scikit-learn's digits, inside its wheel", 1_437, 360, 1, 8, (0.3054,), (0.3753,)),
}  # fmt: skip

_CLASSES = 10
_MEAN_TOLERANCE = 6e-5  # the means above are rounded to four places


def facts(name: str) -> Facts:
    """The facts of a dataset; an unknown name is an error that lists the known ones."""
    return FACTS[checks.choice("dataset", name, FACTS)]


def checksums() -> dict[str, dict[str, str]]:
    """By dataset and array, the SHA-256 of the decoded values, as :func:`sha256` computes it."""
    text = resources.files("weightshare.experiments.data").joinpath("checksums.json").read_text()
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def sha256(array: Tensor) -> str:
    """Of the values as bytes, in the order of the array: no compression or file format enters."""
    data = array.to(torch.uint8).contiguous().numpy()
    return hashlib.sha256(data.data).hexdigest()


def check_shapes(dataset: Dataset) -> None:
    """Raise unless counts, shapes and labels are those of the dataset."""
    known = facts(dataset.name)
    for part, count in (("train", known.train), ("test", known.test)):
        images, labels = getattr(dataset, f"{part}_images"), getattr(dataset, f"{part}_labels")
        wanted = (count, known.channels, known.side, known.side)
        if tuple(images.shape) != wanted:
            raise ValueError(
                f"{dataset.name}: the {part} images must have shape {wanted}, got {tuple(images.shape)}"
            )
        if tuple(labels.shape) != (count,):
            raise ValueError(f"{dataset.name}: there must be {count} {part} labels, got {len(labels)}")
        if int(labels.min()) < 0 or int(labels.max()) >= _CLASSES:
            raise ValueError(
                f"{dataset.name}: {part} labels must be 0 to 9, got {int(labels.min())} to "
                f"{int(labels.max())}"
            )


def channel_means(images: Tensor) -> tuple[float, ...]:
    """The mean of each channel, as a share of white."""
    return tuple((images.sum(dim=(0, 2, 3), dtype=torch.int64) / (255.0 * images[:, 0].numel())).tolist())


def check(dataset: Dataset) -> dict[str, Any]:
    """Raise unless the dataset is the known one: counts, shapes, channel means, then the values."""
    check_shapes(dataset)
    known = facts(dataset.name)
    means = channel_means(dataset.train_images)
    if any(abs(mean - wanted) > _MEAN_TOLERANCE for mean, wanted in zip(means, known.mean)):
        shown = ", ".join(f"{mean:.4f}" for mean in means)
        raise ValueError(f"{dataset.name}: channel means must be {known.mean}, got {shown}")
    found = {name: sha256(array) for name, array in dataset.arrays().items()}
    wanted_sums = checksums().get(dataset.name, {})
    for name, digest in found.items():
        if digest != wanted_sums.get(name):
            raise ValueError(
                f"{dataset.name}: the {name.replace('_', ' ')} have SHA-256 {digest}, recorded is "
                f"{wanted_sums.get(name)}; shapes and means are right, values or their order are not"
            )
    return {"means": means, "sha256": found}
