"""Codebooks to torchao and back, value for value; the library itself is asked where it is installed."""

import sys

import pytest
import torch
from torch import nn

import weightshare as ws
from compress.samples import same
from weightshare.compress.interchange import torchao_parts

PER = ["tensor", "row", 8, 32]  # half of a row, and two of them


def packed(bits=3, per="tensor", dtype=torch.float32, rows=24, columns=16):
    """A model with a packed layer, and the weight that it has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(columns, rows), nn.ReLU(), nn.Linear(rows, 3)).to(dtype)
    ws.tie(model, "0.weight", bits=bits, per=per)
    weight = model[0].weight.detach().clone()
    model[0] = ws.CodebookLinear.from_dense(model[0], per=per)
    return model, weight


def looked_up(codes, codebook, block_size, **other):
    """What torchao's description of the format says, one weight at a time."""
    return torch.stack([
        torch.stack([
            codebook[i // block_size[0], j // block_size[1], int(codes[i, j]), 0]
            for j in range(codes.shape[1])
        ])
        for i in range(codes.shape[0])
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per", PER)
def test_the_parts_mean_the_same_weight(per, dtype):
    model, weight = packed(1 if per == 8 else 2, per, dtype)
    parts = torchao_parts(model[0])
    assert same(looked_up(**parts), weight)
    assert parts["codes"].dtype == torch.uint8
    assert parts["codebook"].shape[2] == 2 ** int(str(parts["code_dtype"])[-1])
    assert parts["shape"] == weight.shape


@pytest.mark.parametrize(("k", "bits"), [(1, 1), (2, 1), (3, 2), (16, 4), (17, 5), (256, 8)])
def test_any_number_of_values_up_to_256(k, bits):
    layer = nn.Linear(64, 32)
    with torch.no_grad():
        layer.weight.copy_((torch.arange(32 * 64) % k).view(32, 64))
    parts = torchao_parts(ws.CodebookLinear.from_dense(layer, per="tensor"))
    assert parts["code_dtype"] == getattr(torch, f"uint{bits}")
    assert same(looked_up(**parts), layer.weight)


def test_what_torchao_cannot_hold_is_refused():
    layer = nn.Linear(64, 64)
    with torch.no_grad():
        layer.weight.copy_((torch.arange(64 * 64) % 257).view(64, 64))
    with pytest.raises(ValueError, match="'big' has 257 values; torchao's codebooks have 256 at most"):
        torchao_parts(ws.CodebookLinear.from_dense(layer, per="tensor"), "big")
    with pytest.raises(ValueError, match=r"float64.*call \.float\(\)"):
        torchao_parts(packed(dtype=torch.float64)[0][0])
    with pytest.raises(ValueError, match="a codebook for every 48 weights"):
        torchao_parts(packed(1, 48, rows=12, columns=32)[0][0])


def test_without_torchao_it_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    model, weight = packed()
    for convert in (ws.compress.to_torchao, ws.compress.from_torchao):
        with pytest.raises(ModuleNotFoundError, match="pip install torchao"):
            convert(model)
    assert same(model[0].weight, weight)


@pytest.fixture
def torchao():
    """The class of the library's tensors."""
    pytest.importorskip("torchao")
    module = pytest.importorskip("torchao.prototype.quantization.codebook_coreml")
    return module.CodebookQuantizedTensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("per", PER)
def test_there_and_back(per, dtype, torchao):
    model, weight = packed(1 if per == 8 else 2, per, dtype)
    x = torch.randn(5, 16, dtype=dtype)
    wanted = model(x).detach()
    bias = model[0].bias
    ws.compress.to_torchao(model)
    assert type(model[0]) is nn.Linear
    assert isinstance(model[0].weight, torchao)
    assert same(model[0].weight.dequantize(), weight)
    torch.testing.assert_close(model(x).detach(), wanted)
    assert type(model[2].weight) is nn.Parameter
    ws.compress.from_torchao(model)
    assert isinstance(model[0], ws.CodebookLinear)
    assert same(model[0].weight, weight)
    assert model[0].bias is bias
    assert torch.equal(model(x), wanted)


@pytest.mark.parametrize("block", [[-1, 16], [24, 16], [2, -1], [1, 4]])
def test_what_torchao_made(block, torchao):
    """Tensors as its own quantiser makes them (that needs coremltools; so they are put together here)."""
    torch.manual_seed(0)
    rows, columns = (24 if block[0] == -1 else block[0]), (16 if block[1] == -1 else block[1])
    codes = torch.randint(0, 8, (24, 16), dtype=torch.uint8)
    codebook = torch.randn(24 // rows, 16 // columns, 8, 1)
    model = nn.Sequential(nn.Linear(16, 24))
    weight = torchao(codes, codebook, torch.uint3, block, torch.Size([24, 16]), torch.float32)
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    wanted = looked_up(codes, codebook, [rows, columns])
    if -1 not in block:
        assert same(weight.dequantize(), wanted)
    ws.compress.from_torchao(model)
    assert same(model[0].weight, wanted)


def test_blocks_of_columns_are_refused(torchao):
    weight = torchao(
        torch.zeros(24, 16, dtype=torch.uint8), torch.ones(1, 4, 8, 1), torch.uint3, [24, 4],
        torch.Size([24, 16]), torch.float32,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(16, 24))
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(ValueError, match="'0' has codebooks for blocks of 24 x 4 weights"):
        ws.compress.from_torchao(model)
    assert type(model[0]) is nn.Linear


def test_codes_outside_of_the_codebook_are_refused(torchao):
    weight = torchao(
        torch.full((4, 8), 9, dtype=torch.uint8), torch.ones(1, 1, 8, 1), torch.uint3, [4, 8],
        torch.Size([4, 8]), torch.float32,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(8, 4))
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(ValueError, match="code 9 is not a place among 8 values"):
        ws.compress.from_torchao(model)


def test_one_unfit_layer_changes_nothing(torchao):
    model, weight = packed()
    wide = nn.Linear(64, 64)
    with torch.no_grad():
        wide.weight.copy_((torch.arange(64 * 64) % 300).view(64, 64))
    model.append(ws.CodebookLinear.from_dense(wide, per="tensor"))
    with pytest.raises(ValueError, match="'3' has 300 values"):
        ws.compress.to_torchao(model)
    assert isinstance(model[0], ws.CodebookLinear)
    assert same(model[0].weight, weight)


def test_the_model_itself_cannot_be_replaced(torchao):
    with pytest.raises(ValueError, match=r"model is itself a CodebookLinear"):
        ws.compress.to_torchao(packed()[0][0])
