"""The charts and pictures of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from weightshare import metrics
from weightshare.experiments import filters, first_layer
from weightshare.experiments.html import charts
from weightshare.experiments.html.shown import Shown

Chart = dict[str, str]

SIDE = 8
"""Filters along an edge of the sample."""
GROUPS, MEMBERS = 6, 8
"""Groups of translations that are shown, and filters of each."""


def accuracy(shown: Sequence[Shown]) -> Iterator[Chart]:
    """Curves of accuracy and loss."""
    for key, label, caption in (
        ("test_accuracy", "test accuracy", "On test images."),
        ("valid_accuracy", "validation accuracy", "On the images that were kept from the training set."),
        (
            "train_accuracy",
            "training accuracy",
            "On the images that are trained on, as the network is at each step (with dropout).",
        ),
        ("loss", "training loss", "Cross-entropy, on a logarithmic scale."),
    ):
        lines = [_series(one, key) for one in shown]
        svg = charts.line_chart(
            lines, x_label="epoch", y_label=label, percent=key != "loss", log=key == "loss"
        )
        if svg:
            yield {"svg": svg, "caption": caption}


def _series(one: Shown, key: str) -> charts.Series:
    points = [(row["epoch"], row[key]) for row in one.rows if row.get(key) is not None]
    return charts.Series(one.name, one.number, [x for x, _ in points], [y for _, y in points])


def clusters(shown: Sequence[Shown]) -> Iterator[Chart]:
    """A chart for each layer: distinct values against epochs, from the random weights at the start on."""
    for layer in dict.fromkeys(name for one in shown for name in one.layers):
        lines = []
        for one in shown:
            points = [(0, metrics.summary(one.initial[layer]).distinct)] if layer in one.initial else []
            points += [(row["epoch"], row["layers"][layer]["distinct"]) for row in one.rows
                       if layer in row.get("layers", {})]  # fmt: skip
            lines.append(charts.Series(one.name, one.number, [x for x, _ in points], [y for _, y in points]))
        svg = charts.line_chart(lines, x_label="epoch", y_label="distinct values", of=layer, log=True)
        if svg:
            yield {"svg": svg, "caption": layer}


def histograms(shown: Sequence[Shown]) -> Iterator[Chart]:
    """The weights of each counted layer before and after training."""
    for one in shown:
        for layer in one.layers:
            if layer not in one.weights:
                continue
            after = one.weights[layer].flatten().double().numpy()
            before = one.initial[layer].flatten().double().numpy() if layer in one.initial else None
            found = metrics.summary(one.weights[layer])
            counts = f"{found.weights:,} weights, {found.distinct:,} distinct values, {found.zeros:,} zeros"
            yield {
                "title": f"{one.name}, {layer}",
                "svg": charts.histogram(before, after, one.number, f"{one.name}, {layer}"),
                "caption": counts,
            }


def learned_filters(shown: Sequence[Shown]) -> Iterator[Chart]:
    """A sample of each first layer, and its groups of translations."""
    for one in shown:
        if first_layer.WEIGHT not in one.weights:
            continue
        layer = first_layer.of(one.run)
        pictures = layer.pictures()
        best = filters.most_nonzeros(pictures, SIDE * SIDE).tolist()
        groups = layer.groups()
        found = layer.likeness()
        lines = [group.rows[:MEMBERS] for group in groups[:GROUPS]]
        caption = (
            f"Score {found.score:.2f}, locality {found.locality:.2f}; "
            f"{found.alive:,} of {len(pictures):,} filters are not constant."
        )
        yield {
            "title": one.name,
            "sample": charts.png(_sheet([pictures[best[i : i + SIDE]] for i in range(0, SIDE * SIDE, SIDE)])),
            "groups": charts.png(_sheet([pictures[line] for line in lines], columns=SIDE)) if lines else "",
            "below": _below(len(lines), len(groups)),
            "caption": caption,
        }


def _below(shown: int, groups: int) -> str:
    what = "filters that are translations of one another"
    if groups < 2:
        return f"The one group of {what}"
    return (
        f"The {shown} largest of {groups} groups of {what}" if shown < groups else f"{shown} groups of {what}"
    )


_BELOW, _ABOVE = (46, 134, 200), (217, 98, 43)
_FRAME = (128, 128, 128, 70)


def _sheet(lines: Sequence[Tensor], columns: int = 0) -> np.ndarray:
    """Lines of images on one transparent sheet, a pixel apart; at least so many columns wide."""
    lines = [line for line in lines if len(line)]
    if not lines:
        return np.zeros((1, 1, 4), np.uint8)
    height, width = lines[0].shape[2:]
    columns = max(columns, *map(len, lines))
    sheet = np.zeros((len(lines) * (height + 1) + 1, columns * (width + 1) + 1, 4), np.uint8)
    places = [
        (i * (height + 1) + 1, j * (width + 1) + 1, image)
        for i, line in enumerate(lines)
        for j, image in enumerate(line)
    ]
    for top, left, _ in places:
        sheet[top - 1 : top + height + 1, left - 1 : left + width + 1] = _FRAME
    for top, left, image in places:
        sheet[top : top + height, left : left + width] = _pixels(image)
    return sheet


def _pixels(image: Tensor) -> np.ndarray:
    """A filter as colours on a clear ground; with three channels as a picture."""
    shown = filters.contrast(image[None])[0]
    shown = shown / shown.abs().max().clamp(min=1e-30)
    pixels = np.zeros((*image.shape[1:], 4), np.uint8)
    if len(image) == 3:
        pixels[..., :3] = (127.5 + 127.5 * shown).permute(1, 2, 0).numpy()
        pixels[..., 3] = 255
        return pixels
    value = shown.mean(0).numpy()
    pixels[..., :3] = np.where((value > 0)[..., None], _ABOVE, _BELOW)
    pixels[..., 3] = 255 * np.sqrt(np.abs(value))
    return pixels
