"""What a model would take: as it is, compressed, and by the usual alternatives."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weightshare.compress.codebook import distinct, patterns
from weightshare.compress.dtypes import code_of
from weightshare.compress.encoding import encode
from weightshare.compress.packing import Bits
from weightshare.compress.reader import Reader
from weightshare.compress.writer import Progress, check_tensor, memory_key, shown
from weightshare.kernels.threads import run
from weightshare.training.report import Table

_PIECE = 1 << 22  # bytes that are deflated at a time


def estimate(
    model: nn.Module | Mapping[str, Tensor], *, zip: bool = True, progress: Progress | None = None
) -> Table:
    """The bytes of every tensor of a model or a state_dict: compressed by :func:`save`, and otherwise.

    The columns: weights; distinct values (bit patterns: 0 and -0 are two); their entropy and the bits per
    weight of the compressed tensor; its coder and its bytes; and the bytes as they are, as float32, float16
    and int8 (one scale; integers keep their own size), deflated like a zip file (``zip=False`` leaves this
    out: it is slow), and by the paper's formula, ``k c + d log2 k`` bits for ``k`` distinct values of ``c``
    bits among ``d`` weights. Headers are left out. What is the same memory under two names counts once.

    >>> import torch
    >>> weight = torch.tensor([0.5, -0.5, 0.25, 0.125]).repeat(250, 10)
    >>> row = estimate({"fc.weight": weight}, zip=False)["fc.weight"]
    >>> row["weights"], row["distinct"], row["entropy"], row["fp32"], row["paper"]
    (10000, 4, 2.0, 40000, 2516)
    """
    tensors: Mapping[str, Tensor] = model.state_dict() if isinstance(model, nn.Module) else model
    rows = []
    seen: dict[Any, tuple[str, Tensor]] = {}  # with the tensor, lest its memory become another's
    for done, name in enumerate(tensors):
        tensor = tensors[name]
        check_tensor(name, tensor)
        if isinstance(tensors, Reader):
            if tensors.alias(name) is None:
                rows.append(_row(name, tensor, tensors.coder(name), tensors.stored_bytes(name), zip))
        elif not tensor.numel() or seen.setdefault(memory_key(tensor), (name, tensor))[0] == name:
            coding = encode(patterns(tensor))
            rows.append(_row(name, tensor, shown(coding.description), coding.nbytes, zip))
        if progress is not None:
            progress(name, done + 1, len(tensors))
    return Table([*rows, _total(rows, zip)])


def _row(name: str, tensor: Tensor, coder: str, size: int, zip: bool) -> dict[str, Any]:
    bits = patterns(tensor)
    found = distinct(bits)
    assert found is not None
    k = found.values.size
    paper = found.values.nbytes * 8 + bits.size * math.log2(max(k, 1))
    numbers = _numbers(tensor)
    return {
        "tensor": name,
        "weights": bits.size,
        "distinct": k,
        "entropy": found.entropy,
        "bits": 8 * size / bits.size if bits.size else 0.0,
        "coder": coder,
        "bytes": size,
        "as it is": bits.nbytes,
        "fp32": bits.nbytes if numbers is None else 4 * numbers,
        "fp16": bits.nbytes if numbers is None else 2 * numbers,
        "int8": bits.nbytes if numbers is None else numbers,
        **({"zip": _deflated(bits)} if zip else {}),
        "paper": math.ceil(paper / 8),
    }


def _numbers(tensor: Tensor) -> int | None:
    """How many real numbers a tensor has; ``None`` where they are integers."""
    if tensor.is_complex():
        return 2 * tensor.numel()
    if not tensor.is_floating_point():
        return None
    return tensor.numel() * (2 if code_of(tensor.dtype) == "F4" else 1)


def _deflated(bits: Bits) -> int:
    """Bytes after zlib at its usual level, in pieces that are much longer than it looks back."""
    memory = bits.data.cast("B") if bits.size else memoryview(b"")
    starts = range(0, len(memory), _PIECE)
    sizes = [0] * len(starts)

    def work(number: int, start: int) -> None:
        sizes[number] = len(zlib.compress(memory[start : start + _PIECE], 6))

    run([partial(work, *task) for task in enumerate(starts)], torch.get_num_threads())
    return sum(sizes)


def _total(rows: list[dict[str, Any]], zip: bool) -> dict[str, Any]:
    columns = ["weights", "bytes", "as it is", "fp32", "fp16", "int8", *(["zip"] if zip else []), "paper"]
    sums = {key: sum(row[key] for row in rows) for key in columns}
    return {"tensor": "total", **sums, "bits": 8 * sums["bytes"] / max(sums["weights"], 1)}
