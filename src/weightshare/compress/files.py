"""The files that others write: plain safetensors and torch checkpoints, a tensor at a time if it can be."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightshare.atomic import replacing
from weightshare.compress import container
from weightshare.compress.codebook import patterns, tensor_of
from weightshare.compress.container import Container
from weightshare.compress.dtypes import code_of, dtype_of
from weightshare.compress.layout import KEY
from weightshare.compress.reader import Reader
from weightshare.compress.writer import Progress, memory_of
from weightshare.training.names import listed

CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt")


class Plain(Mapping[str, Tensor]):
    """The tensors of a plain safetensors file, each looked at where it lies when it is asked for."""

    def __init__(self, file: Container) -> None:
        self._file = file
        for name, entry in file.entries.items():
            if dtype_of(entry.code) is None:
                raise file.wrong(
                    f"tensor {name!r} has dtype {entry.code}, which PyTorch {torch.__version__} does not have"
                )

    @property
    def metadata(self) -> dict[str, str]:
        """The words in its header."""
        return self._file.metadata

    def __len__(self) -> int:
        return len(self._file.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.entries)

    def __getitem__(self, name: str) -> Tensor:
        entry = self._file.entries[name]
        dtype = dtype_of(entry.code)
        assert dtype is not None
        return tensor_of(self._file.patterns(name), dtype, entry.shape)


def open_tensors(
    path: str | os.PathLike[str], key: str | None = None, limit: int | None = None
) -> Mapping[str, Tensor]:
    """The tensors of a file by name: compressed (a :class:`Reader`), plain safetensors or a torch checkpoint.

    A checkpoint is read with ``weights_only=True``: nothing in it is executed. Where its tensors are not at
    the top, ``key`` says under which key they are.
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(b"\x80") or start == b"PK\x03\x04":
        return _checkpoint(path, key)
    if key is not None:
        raise ValueError(f"key={key!r} is for torch checkpoints, and {path} is a safetensors file")
    plain = Container(path)
    return Reader(path, limit=limit) if KEY in plain.metadata else Plain(plain)


def _checkpoint(path: Path, key: str | None) -> Mapping[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # there is no end to the ways in which a damaged pickle fails
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{path} cannot be read as a torch checkpoint of tensors alone (weights_only=True): {reason}"
        ) from None
    found = content.get(key) if key is not None and isinstance(content, Mapping) else content
    if isinstance(found, Mapping) and _is_state(found):
        return dict(found)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds {type(content).__name__}, not tensors by name; save a state_dict")
    inner = [repr(name) for name, value in content.items() if _is_state(value)]
    if inner and key is None:
        raise ValueError(f"{path} holds more than a state_dict; give the key of one: {listed(inner)}")
    if inner:
        raise ValueError(f"{path} has no state_dict under {key!r}; there are {listed(inner)}")
    other = [
        f"{name!r} ({type(value).__name__})" for name, value in content.items() if not _is_tensor(name, value)
    ]
    raise ValueError(f"{path} holds no state_dict: {listed(other, 5)} are no tensors")


def _is_tensor(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor)


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 0 and all(_is_tensor(*item) for item in value.items())


def write_plain(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Tensors as plain safetensors, or by the ending of ``path`` (.pt, .pth, .bin, .ckpt) as a checkpoint.

    In safetensors each name has its own tensor, also where several were the same memory.
    """
    target = Path(path)
    if target.suffix in CHECKPOINTS:
        with replacing(target) as file:
            torch.save(dict(tensors), file)
        return
    done = 0

    def read(name: str) -> list[memoryview]:
        nonlocal done
        done += sizes[name]
        if progress is not None:
            progress(name, done, sum(sizes.values()))
        return memory_of(patterns(tensors[name]))

    parts = [container.Tensor(name, *_form(tensors, name), partial(read, name)) for name in tensors]
    sizes = {part.name: part.nbytes for part in parts}
    with replacing(target) as file:
        container.write(file, parts, metadata)


def _form(tensors: Mapping[str, Tensor], name: str) -> tuple[str, tuple[int, ...]]:
    """The dtype of a tensor in a header, and its shape."""
    if isinstance(tensors, Reader):
        return tensors.form(name)
    return code_of(tensors[name].dtype) or "", tuple(tensors[name].shape)
