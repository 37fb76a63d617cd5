"""The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn: real data without a download."""

from __future__ import annotations

import torch

from weightshare.experiments.data.dataset import Dataset
from weightshare.experiments.data.facts import facts

_WHITE = 16  # the values are 0 to 16


def load() -> Dataset:
    """The first four fifths for training, the rest for testing: other writers, as the file is by writers."""
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = torch.from_numpy(found.images).to(torch.float64)
    images = (levels * 255.0 / _WHITE).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(found.target).to(torch.int64)
    known = facts("digits")
    return Dataset(
        "digits",
        images[: known.train],
        labels[: known.train],
        images[known.train :],
        labels[known.train :],
        known.mean,
        known.std,
    )
