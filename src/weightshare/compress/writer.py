"""Tensors into a compressed file: one at a time, through a spool, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weightshare import checks
from weightshare.atomic import replacing
from weightshare.compress import container
from weightshare.compress.codebook import patterns
from weightshare.compress.dtypes import code_of
from weightshare.compress.encoding import PREFER, Coding, Description, encode, roles
from weightshare.compress.layout import KEY, About, Described, Sums, described, separator_for, sums_size
from weightshare.training.report import Table

Progress = Callable[[str, int, int], None]
_PIECE = 1 << 22  # bytes that are copied at a time


def save(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    prefer: str = "size",
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Table:
    """Write every tensor of a model, or of a state_dict, losslessly and in as few bytes as its ties allow.

    The file is a valid safetensors file (docs/compression.md has the format) and takes the place of an older
    one only when it is complete. ``prefer="speed"`` keeps to codings that :class:`Reader` can read where they
    lie. ``metadata`` (words by words) goes into the header; ``progress`` is called with the name of each
    tensor, the bytes behind it and the bytes in all. Tensors that are the same memory are stored once, and
    :func:`load` gives the same tensor for all their names.

    Returns a table of what was done: bytes before and after, and the coder, of each tensor.

    >>> import tempfile, torch, weightshare as ws
    >>> weight = torch.randn(16)[torch.randint(16, (300, 100))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = ws.save({"fc.weight": weight}, f"{folder}/model.ws.safetensors")
    ...     again = ws.load(f"{folder}/model.ws.safetensors")
    >>> done["fc.weight"]["before"], done["fc.weight"]["coder"], bool((again["fc.weight"] == weight).all())
    (120000, 'packed', True)
    """
    checks.choice("prefer", prefer, PREFER)
    tensors = state_of(model)
    extra = _checked_metadata(metadata)
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: there is no folder {target.parent}; make it first")
    with tempfile.TemporaryFile(dir=target.parent) as spool:
        plan = _Plan(spool, separator_for(tensors))
        rows = _encode_each(tensors, plan, prefer, progress)
        plan.close(extra)
        with replacing(target) as file:
            plan.write(file)
    return Table([*rows, _total(rows)])


def state_of(model: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors by name; ``TypeError`` or ``ValueError`` for the first that cannot be stored."""
    tensors: Mapping[str, Tensor] = model.state_dict() if isinstance(model, nn.Module) else model
    if not isinstance(tensors, Mapping):
        raise TypeError(f"model must be a torch.nn.Module or a state_dict, got {type(model).__name__}")
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
    return tensors


def check_tensor(name: Any, tensor: Any) -> None:
    """``TypeError`` or ``ValueError`` for what cannot be stored under this name."""
    if not isinstance(name, str):
        raise TypeError(f"names of tensors must be words, got {name!r}")
    if name == container.METADATA:
        raise ValueError(f"no tensor can be called {name!r} in a safetensors file; rename it")
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name!r} is no tensor but {type(tensor).__name__}; a file holds tensors only: leave it out, or "
            "keep it in metadata="
        )
    if hasattr(tensor, "full_tensor"):
        raise TypeError(f"{name!r} is distributed; save {name!r}.full_tensor()")
    if tensor.is_nested or tensor.layout != torch.strided:
        raise TypeError(f"{name!r} is not dense (layout {tensor.layout}); convert it with .to_dense()")
    if tensor.is_meta or hasattr(tensor, "__tensor_flatten__"):
        kind = type(tensor).__name__
        raise TypeError(f"{name!r} ({kind} on {tensor.device}) has no plain memory to be saved")
    code = code_of(tensor.dtype)
    if code is None or (code == "F4" and not tensor.ndim):
        raise TypeError(f"{name!r} has dtype {tensor.dtype}, which safetensors does not have; convert it")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} cannot be written: it holds half a character") from None


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    found = dict(metadata or {})
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be words by words, got {key!r}: {value!r}; use json.dumps(value)")
        if key == KEY:
            raise ValueError(f"metadata[{KEY!r}] is the file's own description; use another key")
    return found


@dataclass
class _Plan:
    """The tensors of the file to be, with their bytes in the spool or still in the model."""

    spool: IO[bytes]
    separator: str
    tensors: list[container.Tensor] = field(default_factory=list)
    described: dict[str, Described] = field(default_factory=dict)
    aliases: dict[str, tuple[str, int]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)

    def add(self, name: str, code: str, tensor: Tensor, prefer: str) -> tuple[str, int]:
        """Encode a tensor; returns the coder's name and the bytes it takes."""
        shape = tuple(tensor.shape)
        plain = container.Tensor(name, code, shape, partial(_bytes_of, tensor))
        coding = encode(patterns(tensor), prefer)
        parts = [] if coding.description["coder"] == "raw" else self._parts(name, code, coding)
        if not parts or _size(parts, {name: described(code, shape, coding.description)}) >= _size([plain]):
            self.tensors.append(plain)
            return "raw", plain.nbytes
        self.described[name] = Described(code, shape, coding.description)
        self.tensors.extend(self._spooled(part) for part in parts)
        return shown(coding.description), coding.nbytes

    def _parts(self, name: str, code: str, coding: Coding) -> list[container.Tensor]:
        kinds = roles(coding.description)
        return [
            container.Tensor(
                f"{name}{self.separator}{role}",
                kinds[role] or code,
                (array.size,),
                partial(memory_of, array),
            )
            for role, array in coding.parts.items()
        ]

    def _spooled(self, part: container.Tensor) -> container.Tensor:
        """The same with its bytes in the spool, so that the arrays can be forgotten."""
        begin = self.spool.tell()
        for piece in part.read():
            self.spool.write(piece)
        return container.Tensor(part.name, part.code, part.shape, partial(self._read, begin, part.nbytes))

    def _read(self, begin: int, size: int) -> Iterator[bytes]:
        self.spool.seek(begin)
        for at in range(0, size, _PIECE):
            yield self.spool.read(min(_PIECE, size - at))

    def close(self, metadata: Mapping[str, str]) -> None:
        """Add the description and the checksums."""
        about = About(self.separator, self.described, self.aliases)
        self.metadata = {**metadata, KEY: about.dumps()}
        size = sums_size(sum(tensor.nbytes for tensor in self.tensors))
        self.tensors.append(
            container.Tensor(about.checksums, "U8", (size,), lambda: [self.sums.array().data])
        )

    def write(self, file: IO[bytes]) -> None:
        """The whole file."""
        container.write(file, self.tensors, self.metadata, last=self.tensors[-1].name, told=self.sums)


def _bytes_of(tensor: Tensor) -> list[memoryview]:
    return memory_of(patterns(tensor))


def memory_of(array: NDArray[Any]) -> list[memoryview]:
    """The bytes of an array, to be written."""
    return [array.data.cast("B")] if array.size else []


def _size(tensors: Iterable[container.Tensor], about: Any = None) -> int:
    """Bytes in the file, with what the header says of them."""
    begin = 1 << 30  # offsets have about as many digits
    text = 0 if about is None else _text(container.dumps(about))
    return text + sum(
        one.nbytes + _text({one.name: container.entry(one.code, one.shape, begin, begin)}) for one in tensors
    )


def _text(value: Any) -> int:
    """Bytes that JSON takes."""
    return len(container.dumps(value).encode())


def shown(description: Description) -> str:
    """The name of a coder for people."""
    return f"{description['coder']}, literals" if "literals" in description else str(description["coder"])


def _encode_each(
    tensors: Mapping[str, Tensor], plan: _Plan, prefer: str, progress: Progress | None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen: dict[Any, str] = {}
    kept = dict(tensors)  # so that no memory is given back and taken again while its address is a key
    total = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    done = 0
    for place, (name, tensor) in enumerate(kept.items()):
        code = code_of(tensor.dtype)
        assert code is not None
        before = tensor.numel() * tensor.element_size()
        first = seen.setdefault(memory_key(tensor), name) if before else name
        row = {"tensor": name, "dtype": code, "weights": tensor.numel(), "before": before}
        if first != name:
            plan.aliases[name] = (first, place)
            rows.append({**row, "after": 0, "coder": f"as {first}"})
        else:
            coder, after = plan.add(name, code, tensor, prefer)
            rows.append({**row, "after": after, "coder": coder})
        done += before
        if progress is not None:
            progress(name, done, total)
    return rows


def memory_key(tensor: Tensor) -> Any:
    """What two tensors have in common that are the same memory, read in the same way."""
    return (
        tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(),
        tensor.is_neg(),
    )  # fmt: skip


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {key: sum(row[key] for row in rows) for key in ("weights", "before", "after")}
    return {"tensor": "total", **sums}
