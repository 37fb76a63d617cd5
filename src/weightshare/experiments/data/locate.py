"""Where data is, and reading it: IDX files (gzipped or not), CIFAR10's binary files, bundled digits."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from weightshare.experiments.data import cifar, digits, idx
from weightshare.experiments.data.dataset import Dataset
from weightshare.experiments.data.facts import Facts, check_shapes, facts

VARIABLE = "WEIGHTSHARE_DATA"

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}

# Below the data folder: ours, then where others put the same files.
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", "MNIST", "."),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "."),
    "cifar10": ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
}


def default_directory() -> Path:
    """``$WEIGHTSHARE_DATA``, or the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "weightshare"


def load(name: str, directory: str | Path | None = None) -> Dataset:
    """The dataset from ``directory`` (by default :func:`default_directory`).

    Files of the right names are enough, in ``directory`` itself or in a folder of the dataset's name there.

    >>> load("digits").train_images.shape
    torch.Size([1437, 1, 8, 8])
    """
    known = facts(name)
    if name == "digits":
        return digits.load()
    files = files_of(name, directory)
    if name == "cifar10":
        found = assemble_cifar(list(map(cifar.read, files)), known)
    else:
        found = assemble_idx(name, list(map(idx.read, files)), known)
    check_shapes(found)
    return found


def files_of(name: str, directory: str | Path | None = None) -> list[Path]:
    """The files that hold a dataset, all of them; where one is missing, an error that names the remedy."""
    root = Path(directory).expanduser() if directory is not None else default_directory()
    wanted = cifar.FILES if name == "cifar10" else tuple(IDX_FILES.values())
    folders = [root / folder for folder in _FOLDERS[name]]
    for folder in folders:
        found = [_existing(folder, file) for file in wanted]
        if all(found):
            return [file for file in found if file is not None]
    where = "" if directory is None else f" --dir {directory}"
    raise ValueError(
        f"{name} is not in {root}: get it with `weightshare data fetch {name}{where}`, or point {VARIABLE} "
        f"at a folder that holds {', '.join(wanted)}"
    )


def _existing(folder: Path, name: str) -> Path | None:
    # Some unpack "train-images-idx3-ubyte" as "train-images.idx3-ubyte".
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / n for n in names if (folder / n).is_file()), None)


def assemble_idx(name: str, arrays: list[Tensor], known: Facts) -> Dataset:
    """The dataset from the arrays of its four IDX files."""
    train_images, train_labels, test_images, test_labels = arrays
    return Dataset(
        name,
        train_images[:, None],
        train_labels.long(),
        test_images[:, None],
        test_labels.long(),
        known.mean,
        known.std,
    )


def assemble_cifar(parts: list[tuple[Tensor, Tensor]], known: Facts) -> Dataset:
    """The dataset from the images and labels of its six binary files."""
    *train, (test_images, test_labels) = parts
    images, labels = (torch.cat(arrays) for arrays in zip(*train))
    return Dataset("cifar10", images, labels.long(), test_images, test_labels.long(), known.mean, known.std)
