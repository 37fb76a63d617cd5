"""Learned filters: groups of translations, and a random sample (the paper's two kinds of figures)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightshare.experiments import filters
from weightshare.experiments.figures import style
from weightshare.experiments.first_layer import Layer

GROUPS = 6
"""Groups that are shown of each layer."""
MEMBERS = 10
"""Filters that are shown of each group."""
TOP = 256
"""The sample is drawn from so many filters with the most nonzeros, as in the paper."""


def picture(image: Tensor) -> np.ndarray:
    """A filter as colours: its contrast in red and blue around white; with three channels, as a picture.

    Shape (height, width, 3), values in [0, 1]; each filter fills the scale by itself.
    """
    shown = filters.contrast(image[None])[0]
    shown = shown / shown.abs().max().clamp(min=1e-30)
    if len(shown) == 3:
        colours: np.ndarray = (0.5 + 0.5 * shown).permute(1, 2, 0).numpy()
        return colours
    value = shown.mean(0)[..., None]
    strength = value.abs().sqrt()  # so that weak weights are seen
    pole = torch.where(value > 0, torch.tensor([0.70, 0.09, 0.17]), torch.tensor([0.13, 0.40, 0.67]))
    mixed: np.ndarray = (1.0 - strength * (1.0 - pole)).numpy()
    return mixed


def translations(layers: Sequence[Layer]) -> Any:
    """Groups of filters that are translations of one another, found by cross-correlation; a block a layer."""
    plt = style.pyplot()
    found = [layer.groups()[:GROUPS] for layer in layers]
    heights = [max(len(groups), 1) for groups in found]
    width = MEMBERS * 0.62 + 0.3
    drawn = plt.figure(figsize=(width, 0.62 * sum(heights) + 0.75 * len(layers)))
    blocks = np.atleast_1d(drawn.subfigures(len(layers), 1, height_ratios=[h + 1.1 for h in heights]))
    for block, layer, groups in zip(blocks, layers, found):
        measured = layer.likeness()
        block.suptitle(
            f"{layer.title}: score {measured.score:.2f}, "
            f"{measured.alive:,} of {len(layer.weight):,} filters alive",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
        pictures = layer.pictures()
        axes = block.subplots(max(len(groups), 1), MEMBERS, squeeze=False)
        for ax in axes.flat:
            ax.axis("off")
        if not groups:
            axes[0, 0].text(0, 0.5, "no two filters are translations of one another", fontsize=9)
        for line, group in zip(axes, groups):
            for ax, row in zip(line, _spread_out(group)):
                _show(ax, pictures[row])
    return drawn


def _spread_out(group: filters.Group) -> list[int]:
    """Up to MEMBERS rows of the group, no two at the same place where there are enough places."""
    seen: set[tuple[int, int]] = set()
    first: list[int] = []
    rest: list[int] = []
    for row, shift in zip(group.rows, group.shifts):
        (rest if shift in seen else first).append(row)
        seen.add(shift)
    return (first + rest)[:MEMBERS]


def sample(layers: Sequence[Layer], count: int = 64, seed: int = 0) -> Any:
    """A random sample of the filters with the most nonzero weights, a panel for each layer."""
    plt = style.pyplot()
    side = math.isqrt(count)
    columns = min(len(layers), 3)
    lines = math.ceil(len(layers) / columns)
    drawn = plt.figure(figsize=(3.3 * columns, 3.6 * lines))
    panels = np.atleast_1d(drawn.subfigures(lines, columns)).reshape(-1)
    for panel, layer in zip(panels, layers):
        pictures = layer.pictures()
        best = filters.most_nonzeros(pictures, TOP)
        chosen = best[torch.randperm(len(best), generator=torch.Generator().manual_seed(seed))][:count]
        panel.suptitle(layer.title, fontsize=10)
        ax = panel.subplots()
        ax.axis("off")
        if not len(chosen):
            ax.text(0.5, 0.5, "all filters are constant", ha="center", fontsize=9)
            continue
        ax.imshow(_mosaic([picture(pictures[row]) for row in chosen.tolist()], side), interpolation="nearest")
    return drawn


def _mosaic(tiles: Sequence[np.ndarray], side: int) -> np.ndarray:
    """Pictures in lines of ``side``, with thin grey lines between them."""
    height, width, _ = tiles[0].shape
    whole = np.ones((side * (height + 1) + 1, side * (width + 1) + 1, 3))
    for i, tile in enumerate(tiles):
        top, left = (i // side) * (height + 1), (i % side) * (width + 1)
        whole[top : top + height + 2, left : left + width + 2] = 0.8
        whole[top + 1 : top + height + 1, left + 1 : left + width + 1] = tile
    return whole


def _show(ax: Any, image: Tensor) -> None:
    ax.axis("on")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="#bbbbbb", linewidth=0.5)
    ax.grid(False)
    ax.imshow(picture(image), interpolation="nearest")
