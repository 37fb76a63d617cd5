"""Digits on a torus as the networks see them, in the three variants (the paper's figure shows the first)."""

from __future__ import annotations

from typing import Any

import torch

from weightshare.experiments import torus
from weightshare.experiments.data import Dataset
from weightshare.experiments.figures import style

VARIANTS = {
    "plain": "rolled",
    "no-locality": "permuted, then rolled",
    "no-symmetry": "rolled, then permuted",
}


def figure(dataset: Dataset, seed: int = 0) -> Any:
    """One training image of each class, a line for each variant."""
    first = [int((dataset.train_labels == c).nonzero()[0]) for c in range(10)]
    plt = style.pyplot()
    drawn, axes = plt.subplots(len(VARIANTS), 10, figsize=(8.4, 3.0))
    drawn.get_layout_engine().set(rect=(0, 0, 1, 0.94), hspace=0.12)  # room for the words above
    for line, (variant, words) in zip(axes, VARIANTS.items()):
        images = torus.make(dataset, variant, seed, torch.tensor(first)).train[:, 0]
        for ax, image in zip(line, images):
            ax.imshow(image.numpy(), cmap="gray", interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set_visible(False)
        head = line[0].text(0, 1.05, f"{variant}: {words}", fontsize=9, transform=line[0].transAxes)
        head.set_in_layout(False)  # it is wider than the image below
    return drawn
