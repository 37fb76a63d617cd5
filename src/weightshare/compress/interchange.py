"""To torchao's codebook tensors and back, value for value.

The format is that of ``torchao.prototype.quantization.codebook_coreml`` (as of torchao 0.18): codes as uint8,
one a weight, a codebook of ``(n, m, 2 ** bits, 1)`` values for blocks of rows and columns, 1 to 8 bits, two
dimensions, float32, float16 or bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weightshare import checks
from weightshare.compress.codebook import patterns
from weightshare.compress.linear import CodebookLinear
from weightshare.compress.packing import bits_for, pack, unpack
from weightshare.compress.replace import replace
from weightshare.compress.weights import PackedWeight, bytes_for
from weightshare.training import names

_MOST = 256


def to_torchao(model: nn.Module) -> None:
    """Replace every CodebookLinear by a Linear whose weight is a ``CodebookQuantizedTensor`` of torchao.

    The values are the same, bit for bit; codes take a byte each in memory. Needs torchao.

    Raises ``ValueError``, and changes nothing, where a layer has more than 256 values in a codebook, float64
    values, or codebooks for stretches that are neither whole rows nor whole parts of rows. Convolutions are
    left as they are: torchao has codebooks for matrices only.
    """
    names.check_module(model)
    tensor_type = _tensor_type()
    layers = _layers(model, CodebookLinear)
    parts = [torchao_parts(layer, name) for name, layer in layers]
    new: dict[int, nn.Module] = {}
    for (_, layer), part in zip(layers, parts):
        dense = nn.Linear(layer.in_features, layer.out_features, False, device="meta")
        dense.weight = nn.Parameter(tensor_type(**part), requires_grad=False)
        dense.bias = layer.bias
        new[id(layer)] = dense.train(layer.training)
    replace(model, new)


def from_torchao(model: nn.Module) -> None:
    """Replace every Linear whose weight is a codebook tensor of torchao by a CodebookLinear, bit for bit.

    The indices are packed; values that a codebook has but no weight uses are kept.
    """
    names.check_module(model)
    tensor_type = _tensor_type()
    layers = [(n, layer) for n, layer in _layers(model, nn.Linear) if isinstance(layer.weight, tensor_type)]
    packed = [_packed(layer.weight, name) for name, layer in layers]
    new: dict[int, nn.Module] = {}
    for (_, layer), weight in zip(layers, packed):
        like = torch.empty(0, dtype=layer.weight.dtype, device=layer.weight.device)
        new[id(layer)] = CodebookLinear._around(layer, None)._filled(weight, like)
    replace(model, new)


def torchao_parts(layer: CodebookLinear, name: str = "layer") -> dict[str, Any]:
    """What torchao's tensor is made of: codes, codebook, code_dtype, block_size, shape, dtype.

    >>> import weightshare as ws
    >>> layer = torch.nn.Linear(8, 2)
    >>> with torch.no_grad(): _ = layer.weight.copy_(layer.weight.sign())
    >>> parts = torchao_parts(ws.CodebookLinear.from_dense(layer, per="tensor"))
    >>> parts["codes"].shape, parts["codebook"].flatten(), parts["code_dtype"], parts["block_size"]
    (torch.Size([2, 8]), tensor([ 1., -1.]), torch.uint1, [2, 8])
    """
    codebook = layer.codebook.detach()
    groups, k = codebook.shape
    rows, columns = layer.shape
    length = rows * columns // groups
    if k > _MOST:
        raise ValueError(
            f"{name!r} has {k:,} values; torchao's codebooks have {_MOST} at most (weightshare.tie)"
        )
    if codebook.dtype not in checks.FLOATS[1:]:
        raise ValueError(f"{name!r} is {codebook.dtype}, which torchao's codebooks cannot be; call .float()")
    if length % columns and columns % length:
        raise ValueError(
            f"{name!r} has a codebook for every {length} weights, which are neither rows nor parts of rows"
        )
    block = [length // columns, columns] if length % columns == 0 else [1, length]
    bits = max(bits_for(k), 1)
    tables = F.pad(codebook, (0, (1 << bits) - k))
    numbers = unpack(layer.indices.cpu().numpy(), bits_for(k), rows * columns)
    return {
        "codes": torch.from_numpy(numbers).view(rows, columns).to(codebook.device),
        "codebook": tables.view(rows // block[0], columns // block[1], 1 << bits, 1),
        "code_dtype": getattr(torch, f"uint{bits}"),
        "block_size": block,
        "shape": torch.Size(layer.shape),
        "dtype": codebook.dtype,
    }


def _packed(weight: Any, name: str) -> PackedWeight:
    """A codebook tensor of torchao as codebooks and packed indices."""
    rows, columns = weight.shape
    block = [full if size == -1 else size for size, full in zip(weight.block_size, weight.shape)]
    codebook: Tensor = weight.codebook.detach().to(weight.dtype)
    if block[1] != columns and block[0] != 1:
        raise ValueError(
            f"{name!r} has codebooks for blocks of {block[0]} x {block[1]} weights, which are neither whole "
            f"rows nor parts of one row"
        )
    values = patterns(codebook).reshape(-1, codebook.shape[-2])
    bits = bits_for(values.shape[1])
    numbers = weight.codes.detach().cpu().contiguous().numpy().reshape(-1)
    if numbers.size and int(numbers.max()) >= values.shape[1]:
        raise ValueError(f"{name!r}: code {numbers.max()} is not a place among {values.shape[1]} values")
    indices = pack(numbers, bits)
    padded = torch.zeros(bytes_for(rows * columns, bits), dtype=torch.uint8).numpy()
    padded[: indices.size] = indices
    return PackedWeight(values, padded)


def _layers(model: nn.Module, kind: type[Any]) -> list[tuple[str, Any]]:
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, kind)]
    if any(module is model for _, module in found):
        raise ValueError(f"model is itself a {type(model).__name__}; put it into a torch.nn.Sequential")
    return found


def _tensor_type() -> type[Any]:
    try:
        from torchao.prototype.quantization.codebook_coreml import CodebookQuantizedTensor
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{missing.name} is not installed; pip install torchao (0.18 is known to work)", name=missing.name
        ) from None
    return CodebookQuantizedTensor  # type: ignore[no-any-return]
