"""The data of a run in memory: batches to train on, and sets to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weightshare.experiments import augment, data, torus
from weightshare.experiments.config import Config
from weightshare.experiments.data import Dataset

EVALUATE_BATCH = 2048
CIFAR_SIDE = 32


@dataclass(frozen=True)
class Task:
    """Images are float32, or uint8 to be normalised (and augmented) batch by batch."""

    side: int
    train: Tensor
    train_labels: Tensor
    held: Tensor
    held_labels: Tensor
    held_name: str
    """``"test"``, or ``"valid"``: a part of the training set, and then the test set is not here at all."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmented: bool
    permutation: Tensor | None
    device: torch.device

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """A training batch, augmented where the config says so."""
        images = self.train[chosen]
        if images.dtype == torch.uint8:
            change = augment.augment if self.augmented else augment.normalize
            images = change(images, self.mean, self.std)
        return images.to(self.device), self.train_labels[chosen].to(self.device)

    def training_set(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The training set as it is, in batches."""
        return self._batches(self.train, self.train_labels)

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What the run is judged by, in batches."""
        return self._batches(self.held, self.held_labels)

    def _batches(self, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, answers in zip(torch.split(images, EVALUATE_BATCH), torch.split(labels, EVALUATE_BATCH)):
            if part.dtype == torch.uint8:
                part = augment.normalize(part, self.mean, self.std)
            yield part.to(self.device), answers.to(self.device)


def make(config: Config, device: torch.device, directory: str | None = None) -> Task:
    """Load the dataset and take the config's part of it."""
    dataset = data.load(config.dataset, directory)
    train, valid = split(dataset.train_labels, config.train_share, config.holdout, config.seed)
    if len(train) < config.batch:
        raise ValueError(
            f"batch={config.batch} is more than the {len(train)} training images that train_share="
            f"{config.train_share:g} and holdout={config.holdout:g} leave; lower it"
        )
    if config.experiment == "cifar10":
        return _cifar(config, _as_cifar(dataset), train, valid, device)
    return _torus(config, dataset, train, valid, device)


def split(labels: Tensor, share: float, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and to validate on: of each class the first ``share``, less a random ``holdout``.

    A smaller share is a part of a larger one, as in the authors' code.

    >>> train, valid = split(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), 0.75, 0.34, seed=0)
    >>> len(train), len(valid)
    (4, 2)
    """
    generator = torch.Generator().manual_seed(seed)
    train, valid = [], []
    for label in sorted(set(labels.tolist())):
        mine = (labels == label).nonzero()[:, 0]
        mine = mine[: int(len(mine) * share + 1e-9)]
        mixed = mine[torch.randperm(len(mine), generator=generator)]
        count = int(len(mine) * holdout + 1e-9)
        valid.append(mixed[:count])
        train.append(mixed[count:])
    return torch.cat(train).sort().values, torch.cat(valid).sort().values


def _torus(config: Config, dataset: Dataset, train: Tensor, valid: Tensor, device: torch.device) -> Task:
    made = torus.make(dataset, config.variant, config.seed, torch.cat([train, valid]))
    held, labels = made.test, made.test_labels
    if len(valid):
        held, labels = made.train[len(train) :], made.train_labels[len(train) :]
    return Task(
        side=made.side,
        train=made.train[: len(train)].to(device),
        train_labels=made.train_labels[: len(train)],
        held=held.to(device),
        held_labels=labels,
        held_name="valid" if len(valid) else "test",
        mean=dataset.mean,
        std=dataset.std,
        augmented=False,
        permutation=made.permutation,
        device=device,
    )


def _cifar(config: Config, dataset: Dataset, train: Tensor, valid: Tensor, device: torch.device) -> Task:
    held, labels = dataset.test_images, dataset.test_labels
    if len(valid):
        held, labels = dataset.train_images[valid], dataset.train_labels[valid]
    return Task(
        side=CIFAR_SIDE,
        train=dataset.train_images[train],
        train_labels=dataset.train_labels[train],
        held=held,
        held_labels=labels,
        held_name="valid" if len(valid) else "test",
        mean=dataset.mean,
        std=dataset.std,
        augmented=config.augment,
        permutation=None,
        device=device,
    )


def _as_cifar(dataset: Dataset) -> Dataset:
    """Smaller grey images as 32 x 32 in three equal channels, so that ``smoke`` needs no download."""

    def enlarge(images: Tensor) -> Tensor:
        times = CIFAR_SIDE // images.shape[-1]
        large = images.repeat_interleave(times, dim=2).repeat_interleave(times, dim=3)
        return large.expand(-1, 3, -1, -1).contiguous()

    if dataset.train_images.shape[1] == 3:
        return dataset
    return Dataset(
        dataset.name,
        enlarge(dataset.train_images),
        dataset.train_labels,
        enlarge(dataset.test_images),
        dataset.test_labels,
        dataset.mean * 3,
        dataset.std * 3,
    )
