"""ONNX files that stay small: packed indices, codebooks and Gather, with nothing folded back into floats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weightshare.atomic import replacing
from weightshare.compress.modules import CodebookModule
from weightshare.training import names

_TABLE = 256 * 8
_LARGEST = (1 << 31) - (1 << 20)  # what protobuf takes in one file, less room for the graph


@torch.no_grad()
def export_onnx(
    model: nn.Module, args: tuple[Any, ...], path: str | os.PathLike[str], **options: Any
) -> None:
    """Write a compacted model as an ONNX file in which each packed weight is indices, a codebook, and Gather.

    ``torch.onnx.export(model, args, path, dynamo=True)`` writes such a file too, but its optimizer computes
    what is constant and below 8,192 bytes, so that small packed layers become floats again. Here they stay.
    The outputs are bitwise those of the ONNX file of the expanded model in onnxruntime.

    Args:
        model: exported as it is: in eval mode, if it is to be.
        args: example inputs, as for ``torch.onnx.export``.
        path: the file, written whole or not at all.
        options: further arguments of ``torch.onnx.export`` (``dynamic_shapes``, ``input_names``, ...).

    onnxruntime computes constants too, when it loads a file, and then holds float weights in memory. To keep
    the packed ones, and expand them in each run:
    ``onnxruntime.InferenceSession(path, disabled_optimizers=["ConstantFolding"])``.

    >>> import torch, tempfile, weightshare as ws
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32)).eval()
    >>> tied = ws.tie(model, bits=2)
    >>> table = ws.compact(model)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ws.compress.export_onnx(model, (torch.zeros(1, 64),), folder + "/small.onnx")
    """
    names.check_module(model)
    optimize, unify, strip = _tools()
    fixed = {"dynamo": True, "optimize": False, "external_data": False}
    taken = fixed.keys() & options.keys()
    if taken:
        raise ValueError(f"{', '.join(sorted(taken))} cannot be given here: {fixed}")
    size = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    if size > _LARGEST:
        raise ValueError(
            f"{size:,} bytes do not fit into one ONNX file; use torch.onnx.export(..., external_data=True)"
        )
    program = torch.onnx.export(model, args, dynamo=True, optimize=False, verbose=False, **options)
    assert program is not None
    kept = _kept(model)
    optimize(program.model, should_fold=lambda node: False if _reads(node.inputs, kept) else None)
    unify(program.model)  # every layer brings the table of what a byte holds
    strip(program.model)  # where in whose source each node came from: larger than a small model
    with replacing(Path(path)) as file:
        file.write(program.model_proto.SerializeToString())


def _tools() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    try:
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass, DeduplicateInitializersPass
        from onnxscript.optimizer import optimize_ir
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"export_onnx needs {missing.name}; pip install 'weightshare[export]'", name=missing.name
        ) from None
    return optimize_ir, DeduplicateInitializersPass(size_limit=_TABLE), ClearMetadataAndDocStringPass()


def _kept(model: nn.Module) -> set[str]:
    """The names of what must not be computed with ahead of time."""
    packed = [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, CodebookModule)
    ]
    return {f"{name}.{leaf}".lstrip(".") for name in packed for leaf in ("indices", "codebook")}


def _reads(inputs: Iterable[Any], kept: set[str]) -> bool:
    return any(value is not None and value.name in kept for value in inputs)
