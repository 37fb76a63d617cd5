"""Layers with packed weights: the same weight, the same outputs, the same derivatives, in less memory."""

import copy
import io
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weightshare as ws
from weightshare.compress import kernels
from weightshare.compress.decode import decode, traced
from weightshare.compress.packing import bits_for, pack
from weightshare.compress.weights import bytes_for, most_values

KINDS = [
    (1, "tensor"),
    (2, "tensor"),
    (3, "row"),
    (5, "tensor"),
    (16, "row"),
    (17, "tensor"),
    (300, "tensor"),
]
CONVS = [
    {"padding": 1},
    {"stride": 2, "padding": 1, "padding_mode": "circular", "bias": False},
    {"padding": "same", "padding_mode": "reflect", "dilation": 2},
    {"groups": 4, "padding": (2, 0)},
]


def tied_(weight, k, per="tensor", seed=0):
    """Overwrite a weight by k values, or k for each row or block."""
    generator = torch.Generator().manual_seed(seed)
    stretches = {"tensor": 1, "row": len(weight)}.get(per) or weight.numel() // per
    values = torch.randn(stretches, k, generator=generator)
    choice = torch.randint(0, k, (stretches, weight.numel() // stretches), generator=generator)
    with torch.no_grad():
        weight.copy_(values.gather(1, choice).view(weight.shape))


def linear(k=16, per="tensor", rows=50, columns=41, dtype=torch.float32):
    torch.manual_seed(1)
    layer = nn.Linear(columns, rows).to(dtype)
    tied_(layer.weight, k, per)
    return layer


def bits_of(tensor):
    return tensor.detach().contiguous().view(torch.uint8).reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("k", "per"), KINDS)
def test_linear_is_bitwise_the_same(k, per, dtype):
    layer = linear(k, per, 60, 120, dtype)
    small = ws.CodebookLinear.from_dense(layer, per=per)
    x = torch.randn(2, 3, 120, dtype=dtype)
    assert torch.equal(bits_of(small.weight), bits_of(layer.weight))
    assert torch.equal(small(x), layer(x))
    assert small.codebook.shape == (
        1 if per == "tensor" else 60,
        len(layer.weight.unique()) if per == "tensor" else k,
    )
    assert torch.equal(bits_of(small.to_dense().weight), bits_of(layer.weight))


@pytest.mark.parametrize("block", [None, 60])
@pytest.mark.parametrize("settings", CONVS)
def test_conv_is_the_same(settings, block):
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 12, 3, **settings)
    tied_(layer.weight, 7)
    small = ws.CodebookConv2d.from_dense(layer, block=block)
    x = torch.randn(2, 8, 9, 10)
    for inputs in (x, x[0]):
        if block is None:
            assert torch.equal(small(inputs), layer(inputs))
        else:
            torch.testing.assert_close(small(inputs), layer(inputs))
    assert torch.equal(small.to_dense()(x), layer(x))
    assert small.to_dense().extra_repr() == layer.extra_repr()


def test_every_bit_pattern_survives():
    layer = nn.Linear(8, 20, bias=False)
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 1e-45, 0.0, 0.0, 1.0])
    odd.view(torch.int32)[5:7] = torch.tensor([0x7FC00001, -0x400000 + 77])  # two different NaNs
    with torch.no_grad():
        layer.weight.copy_(odd)
    small = ws.CodebookLinear.from_dense(layer)
    assert torch.equal(bits_of(small.weight), bits_of(layer.weight))
    assert small.codebook.numel() == 8


@pytest.mark.parametrize(("k", "per"), KINDS)
def test_any_stretch_of_weights_compiled_and_in_tensor_operations(k, per):
    layer = linear(k, per, 60, 121)
    small = ws.CodebookLinear.from_dense(layer, per=per)
    flat, length = layer.weight.detach().flatten(), 60 * 121 // len(small.codebook)
    for start, count in [(0, flat.numel()), (0, 5), (3, 0), (1003, 777), (flat.numel() - 9, 9)]:
        for way in (decode, traced):
            got = way(small.indices, small.codebook.detach(), length, start, count)
            assert torch.equal(got, flat[start : start + count]), way


@pytest.mark.parametrize("bits", [1, 3, 8, 11, 16])
def test_kernels_of_rows_against_numpy(bits):
    rng = np.random.default_rng(bits)
    k, length, rows = (1 << bits) - (bits > 1), 29, 7
    numbers = rng.integers(0, k, rows * length).astype(np.uint16)
    tables = rng.standard_normal((rows, k)).astype(np.float32).view(np.uint32)
    packed = pack(numbers, bits)
    row = np.arange(rows * length) // length
    for start, count in [(0, rows * length), (30, 100), (200, 3)]:
        some = slice(start, start + count)
        out = np.empty(count, np.uint32)
        most = kernels.take_rows(packed, bits, start, tables, length, out)
        assert np.array_equal(out, tables[row[some], numbers[some]])
        assert most == numbers[some].max()
        sums, values = np.zeros((rows, k)), rng.standard_normal(count)
        kernels.add_rows(packed, bits, start, values, length, sums)
        want = np.zeros((rows, k))
        np.add.at(want, (row[some], numbers[some]), values)
        np.testing.assert_allclose(sums, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("per", ["tensor", "row"])
@pytest.mark.parametrize("block", [None, 200])
def test_the_derivative_of_a_value_is_the_sum_over_its_weights(block, per):
    layer = linear(5, per, dtype=torch.float64)
    small = ws.CodebookLinear.from_dense(layer, per=per, block=block)
    small.bias = copy.deepcopy(layer.bias)
    x = torch.randn(6, 41, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    small(y).square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    torch.testing.assert_close(small.bias.grad, layer.bias.grad)
    w, g = layer.weight.detach(), layer.weight.grad
    for row, values in enumerate(small.codebook):
        mine = slice(None) if per == "tensor" else slice(row, row + 1)
        want = torch.stack([g[mine][w[mine] == value].sum() for value in values])
        torch.testing.assert_close(small.codebook.grad[row], want)


@pytest.mark.parametrize("groups", [1, 4])
def test_looking_up_is_differentiable_twice(groups):
    packed = torch.from_numpy(pack(np.random.default_rng(0).integers(0, 3, 40).astype(np.uint8), 2))
    values = torch.randn(groups, 3, dtype=torch.float64, requires_grad=True)
    look = lambda v: decode(packed, v, 40 // groups, 3, 30).square()
    assert torch.autograd.gradcheck(look, values)
    assert torch.autograd.gradgradcheck(look, values)


def test_training_the_values_keeps_the_ties():
    small = ws.CodebookLinear.from_dense(linear(4))
    before = small.indices.clone()
    opt = torch.optim.Adam(small.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        loss = (small(torch.ones(1, 41)) - 3.0).square().mean()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    assert torch.equal(small.indices, before)
    assert len(small.weight.unique()) == 4


def test_what_does_not_require_a_gradient_gets_none():
    layer = linear()
    layer.weight.requires_grad_(False)
    small = ws.CodebookLinear.from_dense(layer)
    assert not small.codebook.requires_grad
    assert not small.weight.requires_grad
    assert not small.to_dense().weight.requires_grad


@pytest.mark.parametrize(("make", "shape"), [(linear, (4, 41)), (lambda: conv_of(10), (2, 5, 6, 6))])
def test_blocks_are_all_that_is_expanded(make, shape):
    layer = make()
    kind = ws.CodebookLinear if isinstance(layer, nn.Linear) else ws.CodebookConv2d
    weights = layer.weight.numel()
    for block in (1, weights // 7, weights // 2, weights, 10 * weights):
        small = kind.from_dense(layer, block=block)
        widths = []
        rows = small.rows
        small.rows = lambda lo, hi, rows=rows, widths=widths: widths.append(hi - lo) or rows(lo, hi)
        x = torch.randn(shape)
        torch.testing.assert_close(small(x), layer(x))
        with torch.no_grad():
            torch.testing.assert_close(small(x), layer(x))
        row = weights // len(layer.weight)
        assert max(widths) * row <= max(block, row)


def conv_of(k):
    layer = nn.Conv2d(5, 20, 3)
    tied_(layer.weight, k)
    return layer


def test_memory_is_that_of_indices_and_codebook_and_one_block():
    layer = linear(16, rows=400, columns=512)
    dense = layer.weight.nbytes
    small = ws.CodebookLinear.from_dense(layer, block=16 * 512)
    held = sum(t.nbytes for t in [*small.parameters(), *small.buffers()])
    assert held == dense // 8 + 16 * 4 + 400 * 4
    whole = ws.CodebookLinear.from_dense(layer)
    x, peaks = torch.randn(1, 512), []
    for module in (small, whole):  # expanded weights are NumPy's memory, which tracemalloc counts
        with torch.no_grad():
            module(x)
            tracemalloc.start()
            module(x)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] > dense
    assert peaks[0] < dense / 8


@pytest.mark.parametrize("fresh", [False, True])
def test_state_dict_round_trip(fresh):
    small = ws.CodebookLinear.from_dense(linear(5, "row"))
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert set(state) == {"codebook", "indices", "bias"}
    other = ws.CodebookLinear(41, 50) if fresh else ws.CodebookLinear.from_dense(linear(5, "row"))
    parameter = other.codebook
    other.load_state_dict(state)
    assert (other.codebook is parameter) == (not fresh)
    assert torch.equal(other.weight, small.weight)
    assert torch.equal(other(torch.ones(1, 41)), small(torch.ones(1, 41)))


def test_a_new_layer_is_zero():
    layer = ws.CodebookLinear(4, 3, bias=False, dtype=torch.float64)
    assert torch.equal(layer.weight, torch.zeros(3, 4, dtype=torch.float64))
    conv = ws.CodebookConv2d(2, 3, (3, 1), bias=True)
    assert conv(torch.ones(1, 2, 4, 4)).abs().max() == 0


def test_bad_state_is_refused_and_changes_nothing():
    small = ws.CodebookLinear.from_dense(linear(5))
    before = small.weight.detach().clone()
    good = small.state_dict()
    for change, message in [
        ({"indices": good["indices"][:-1]}, "bytes"),
        ({"indices": good["indices"].int()}, "int32"),
        ({"indices": torch.full_like(good["indices"], 255)}, "index 7 is not a place in a codebook of 5"),
        ({"codebook": good["codebook"][0]}, "no codebooks"),
        ({"codebook": torch.zeros(3, 5)}, "no codebooks"),
        ({"codebook": torch.zeros(1, 5, dtype=torch.int32)}, "no codebooks"),
        ({"codebook": torch.zeros(1, 0)}, "no codebooks"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            small.load_state_dict({**good, **change})
        assert torch.equal(small.weight, before)
    with torch.no_grad():
        small.indices.fill_(255)
    with pytest.raises(ValueError, match="not a place in"):
        small(torch.ones(1, 41))


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_copies_and_pickles(per):
    small = ws.CodebookLinear.from_dense(linear(5, per), block=123)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(other.weight, small.weight)
        assert other.codebook.data_ptr() != small.codebook.data_ptr()
        assert other.extra_repr() == small.extra_repr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_change_of_dtype_rounds_the_values(dtype):
    layer = linear(9)
    small = ws.CodebookLinear.from_dense(layer).to(dtype)
    assert small.indices.dtype == torch.uint8
    assert torch.equal(small.weight, layer.weight.to(dtype))
    x = torch.randn(3, 41, dtype=dtype)
    assert torch.equal(small(x), layer.to(dtype)(x))


def test_on_the_meta_device():
    small = ws.CodebookLinear.from_dense(linear(9)).to("meta")
    assert small(torch.ones(3, 41, device="meta")).shape == (3, 50)


@pytest.mark.parametrize(("k", "per"), [(16, "tensor"), (6, "tensor"), (6, "row"), (1, "tensor")])
def test_compiles_and_exports_as_plain_tensor_operations(k, per):
    small = ws.CodebookLinear.from_dense(linear(k, per), per=per, block=300)
    x = torch.randn(3, 41)
    torch._dynamo.reset()
    run = torch.compile(small, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(x), small(x))
    (got,) = torch.autograd.grad(run(x).square().sum(), small.codebook)
    (want,) = torch.autograd.grad(small(x).square().sum(), small.codebook)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    program = torch.export.export(small, (x,))
    assert torch.equal(program.module()(x), small.to_dense()(x))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(name.startswith(("aten", "<built-in", "_operator")) for name in names), names


def test_under_function_transforms():
    small = ws.CodebookLinear.from_dense(linear(5))
    state = {name: value.detach() for name, value in small.named_parameters()}
    loss = lambda p, x: torch.func.functional_call(small, p, (x,)).square().sum()
    x = torch.randn(4, 41)
    (want,) = torch.autograd.grad(small(x).square().sum(), small.codebook)
    got = torch.func.grad(loss)(state, x)["codebook"]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, x.unsqueeze(1))["codebook"]
    torch.testing.assert_close(each.sum(0), want, rtol=1e-4, atol=1e-4)


def test_under_autocast():
    layer = linear(5)
    x = torch.randn(4, 41)
    for block in (None, 300):
        small = ws.CodebookLinear.from_dense(layer, block=block)
        with torch.autocast("cpu", torch.bfloat16):
            out = small(x)
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out, layer(x))
            with torch.no_grad():
                torch.testing.assert_close(small(x), layer(x))
        out.float().sum().backward()
        assert small.codebook.grad.dtype == torch.float32


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="too many distinct values"):
        ws.CodebookLinear.from_dense(nn.Linear(41, 50))
    with pytest.raises(ValueError, match="per must be"):
        ws.CodebookLinear.from_dense(linear(), per="column")
    with pytest.raises(ValueError, match="block must be a whole number >= 1, got 0"):
        ws.CodebookLinear.from_dense(linear(), block=0)


@pytest.mark.parametrize("count", [10, 1000, 100_000])
@pytest.mark.parametrize("groups", [1, 5])
def test_the_largest_codebook_that_still_pays(count, groups):
    below = 4 * count
    size = lambda k: groups * k * 4 + bytes_for(count, bits_for(k))
    most = most_values(count, groups, 4, below)
    pays = [k for k in range(1, min(count, 1 << 16) + 1) if size(k) < below]
    assert most == max(pays, default=0)


def test_the_weight_can_be_used_by_others():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    ws.tie(layer, bits=3)
    other = copy.deepcopy(layer)
    ws.compact(layer)
    kinds = [type(m) for m in (layer.linear1, layer.linear2, layer.self_attn.out_proj)]
    assert kinds == [ws.CodebookLinear] * 3
    x = torch.randn(2, 5, 32)
    assert torch.equal(layer(x), other(x))
    with torch.no_grad():  # the fast path, which reads the weights itself
        torch.testing.assert_close(layer(x), other(x))
    assert torch.equal(F.linear(x, layer.linear1.weight), F.linear(x, other.linear1.weight))
