"""What every dataset is here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 (N, channels, side, side), labels as int64, and what to normalise images by."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def arrays(self) -> dict[str, Tensor]:
        """The four arrays by name."""
        names = ("train_images", "train_labels", "test_images", "test_labels")
        return {name: getattr(self, name) for name in names}
