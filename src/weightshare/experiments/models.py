"""The networks of the paper, at any width: a convolutional one and the fully connected one it is a case of.

All have ``layer1``, ``layer2`` and ``output``, and take images of shape (N, channels, side, side).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightshare.experiments.config import Config

CLASSES = 10
KERNEL, STRIDE = 9, 2  # of S-CONV


class TorusCNN(nn.Module):
    """Two circular 3 x 3 convolutions, the mean over positions, a linear map: invariant to translations.

    Batch norm and ReLU follow each convolution; ``width`` and ``2 width`` channels (32 and 64 in the paper).
    """

    def __init__(self, side: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.side = side
        self.layer1 = nn.Conv2d(1, width, 3, padding=1, padding_mode="circular")
        self.norm1 = nn.BatchNorm2d(width)
        self.layer2 = nn.Conv2d(width, 2 * width, 3, padding=1, padding_mode="circular")
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm1(self.layer1(x))))
        x = self.dropout(torch.relu(self.norm2(self.layer2(x))))
        out: Tensor = self.output(x.mean(dim=(2, 3)))
        return out


class TorusMLP(nn.Module):
    """:class:`TorusCNN` with linear layers of the same sizes, 196 -> 196 width -> 392 width.

    Batch norm is of each unit, and dropout (0.4 in the authors' code) follows both hidden layers. The mean
    over the positions of each channel is what is left of the convolutional structure.
    """

    def __init__(self, side: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.side = side
        pixels = side * side
        self.layer1 = nn.Linear(pixels, width * pixels)
        self.norm1 = nn.BatchNorm1d(width * pixels)
        self.layer2 = nn.Linear(width * pixels, 2 * width * pixels)
        self.norm2 = nn.BatchNorm1d(2 * width * pixels)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm1(self.layer1(x.flatten(1)))))
        x = self.dropout(torch.relu(self.norm2(self.layer2(x))))
        out: Tensor = self.output(x.view(len(x), -1, self.side * self.side).mean(dim=2))
        return out


class SConv(nn.Module):
    """S-CONV of Neyshabur 2020: a 9 x 9 convolution with stride 2, and two linear layers.

    Batch norm and ReLU follow the first two layers; ``width`` channels (64 in the paper) and ``24 width``
    hidden units.
    """

    def __init__(self, side: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.side = side
        positions = (-(-side // STRIDE)) ** 2
        self.layer1 = nn.Conv2d(3, width, KERNEL, stride=STRIDE, padding=KERNEL // 2)
        self.norm1 = nn.BatchNorm2d(width)
        self.layer2 = nn.Linear(width * positions, 24 * width)
        self.norm2 = nn.BatchNorm1d(24 * width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(24 * width, CLASSES)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm1(self.layer1(x))))
        x = self.dropout(torch.relu(self.norm2(self.layer2(x.flatten(1)))))
        out: Tensor = self.output(x)
        return out


class SFC(nn.Module):
    """S-FC of Neyshabur 2020: S-CONV with a linear first layer (3,072 -> 16,384 -> 1,536 -> 10)."""

    def __init__(self, side: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.side = side
        hidden = width * (-(-side // STRIDE)) ** 2
        self.layer1 = nn.Linear(3 * side * side, hidden)
        self.norm1 = nn.BatchNorm1d(hidden)
        self.layer2 = nn.Linear(hidden, 24 * width)
        self.norm2 = nn.BatchNorm1d(24 * width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(24 * width, CLASSES)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm1(self.layer1(x.flatten(1)))))
        x = self.dropout(torch.relu(self.norm2(self.layer2(x))))
        out: Tensor = self.output(x)
        return out


def _start(model: nn.Module) -> None:
    """The authors' initial values: biases 0, convolutions normal by fan-out, their batch norm in [0, 1)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


def build(config: Config, side: int) -> nn.Module:
    """The model of a config for images of ``side`` x ``side`` pixels, with random weights.

    >>> from weightshare.experiments.recipes import recipe
    >>> sum(p.numel() for p in build(recipe("cifar10/mlp", "smoke"), 32).parameters())
    793666
    """
    if config.experiment == "cifar10":
        kind: type[nn.Module] = SConv if config.model == "cnn" else SFC
    else:
        kind = TorusCNN if config.model == "cnn" else TorusMLP
    return kind(side, config.width, config.dropout)


def regularized(config: Config) -> dict[int, list[str]]:
    """The parameters of each of the config's layers: weight and bias, each of them a vector by itself."""
    names = {1: "layer1", 2: "layer2", 3: "output"}
    return {layer: [f"{names[layer]}.weight", f"{names[layer]}.bias"] for layer in config.layers}
