"""CIFAR10's binary files: 10,000 records of a label and 3 x 32 x 32 bytes; and the same from PNGs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

SIDE = 32
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
FILES = (*TRAIN_FILES, TEST_FILE)

_PIXELS = SIDE * SIDE
_RECORD = 1 + 3 * _PIXELS
_COUNT = 10_000


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels, both uint8, of one binary file."""
    return parse(path.read_bytes(), str(path))


def parse(data: bytes, source: str) -> tuple[Tensor, Tensor]:
    """Like :func:`read`, from memory."""
    if not data or len(data) % _RECORD:
        raise ValueError(
            f"{source} is not a CIFAR10 binary file: {len(data)} bytes are not a multiple of {_RECORD}"
        )
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE).clone(), records[:, 0].clone()


def encode(images: Tensor, labels: Tensor) -> bytes:
    """The inverse of :func:`parse`."""
    return torch.cat([labels[:, None], images.flatten(1)], dim=1).contiguous().numpy().tobytes()


def from_pngs(folder: Path) -> dict[str, bytes]:
    """The six binary files, from PNGs with one image a row: 10,000 rows of 1,024 pixels each.

    ``folder`` holds ``data_batch_1.png`` to ``data_batch_5.png``, ``test_batch.png``, and the labels as
    lists in ``train_lables.json`` and ``test_lables.json`` (spelt like that, or properly).
    """
    train = _labels(folder, "train")
    test = _labels(folder, "test")
    labels = [*torch.split(train, _COUNT), test]
    return {name: encode(_png(folder, name.removesuffix(".bin")), part) for name, part in zip(FILES, labels)}


def _labels(folder: Path, part: str) -> Tensor:
    file = _only(folder, f"{part}_la*.json")
    values = json.loads(file.read_text())
    count = len(TRAIN_FILES) * _COUNT if part == "train" else _COUNT
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{file} must hold a list of {count} labels")
    return torch.tensor(values, dtype=torch.uint8)


def _png(folder: Path, stem: str) -> Tensor:
    import numpy as np
    from PIL import Image

    file = _only(folder, f"{stem}.png")
    with Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB")))
    if pixels.shape != (_COUNT, _PIXELS, 3):
        raise ValueError(f"{file} must have {_COUNT} rows of {_PIXELS} pixels, got {tuple(pixels.shape[:2])}")
    return pixels.permute(0, 2, 1).reshape(_COUNT, 3, SIDE, SIDE)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise ValueError(f"{folder} must hold one file {pattern}, found {len(found)}")
    return found[0]
