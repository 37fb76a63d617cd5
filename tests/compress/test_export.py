"""Compacted models leave the process: ONNX files that are small and compute the same, and resident memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import weightshare as ws

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def network():
    """A convolution with groups, a large one, and layers for 2 to 9 bits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.Flatten(),
        nn.Linear(32 * 16, 96),
        nn.Tanh(),
        nn.Linear(96, 40),
    ).eval()


def compacted(bits, per):
    model = network()
    ws.tie(model, bits=bits, per=per)
    table = ws.compact(model, per=per)
    kinds = (ws.CodebookConv2d, ws.CodebookLinear)
    assert sum(isinstance(layer, kinds) for layer in model) >= 3
    return model, table


def outputs(path, *inputs, **settings):
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], **settings)
    return session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs)})


@pytest.mark.parametrize(("bits", "per"), [(1, "tensor"), (3, "tensor"), (4, "row")])
def test_onnxruntime_computes_the_same_from_a_small_file(bits, per, tmp_path):
    model, _ = compacted(bits, per)
    x = torch.randn(3, 4, 8, 8)
    ws.compress.export_onnx(model, (x,), tmp_path / "small.onnx")
    held = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    assert (
        os.path.getsize(tmp_path / "small.onnx") < held + 30_000
    )  # and the graph, which unpacks odd numbers of bits in many steps
    (small,) = outputs(tmp_path / "small.onnx", x)
    with torch.no_grad():
        np.testing.assert_allclose(small, model(x).numpy(), rtol=1e-4, atol=1e-5)
    (packed,) = outputs(tmp_path / "small.onnx", x, disabled_optimizers=["ConstantFolding"])
    np.testing.assert_allclose(packed, small, rtol=1e-4, atol=1e-5)
    ws.expand(model)
    torch.onnx.export(model, (x,), tmp_path / "large.onnx", dynamo=True, external_data=False, verbose=False)
    (large,) = outputs(tmp_path / "large.onnx", x)
    assert np.array_equal(small, large)
    assert os.path.getsize(tmp_path / "small.onnx") < 0.6 * os.path.getsize(tmp_path / "large.onnx")


def test_what_is_in_the_file(tmp_path):
    """Indices and codebooks as they are, looked up by Gather; no weight as floats."""
    model, _ = compacted(4, "tensor")
    ws.compress.export_onnx(model, (torch.randn(1, 4, 8, 8),), tmp_path / "small.onnx")
    graph = onnx.load(tmp_path / "small.onnx").graph
    onnx.checker.check_model(str(tmp_path / "small.onnx"))
    held = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    for name, module in model.named_modules():
        if isinstance(module, (ws.CodebookLinear, ws.CodebookConv2d)):
            assert np.array_equal(held[f"{name}.indices"], module.indices.numpy())
            assert np.array_equal(held[f"{name}.codebook"], module.codebook.detach().numpy())
            assert not any(array.size == np.prod(module.shape) and array.ndim > 1 for array in held.values())
    assert "Gather" in {node.op_type for node in graph.node}


def test_options_go_through(tmp_path):
    model, _ = compacted(4, "tensor")
    batch = torch.export.Dim("batch")
    ws.compress.export_onnx(
        model, (torch.randn(2, 4, 8, 8),), tmp_path / "small.onnx",
        input_names=["image"], dynamic_shapes=({0: batch},),
    )  # fmt: skip
    for size in (1, 2, 5):
        x = torch.randn(size, 4, 8, 8)
        (found,) = outputs(tmp_path / "small.onnx", x)
        with torch.no_grad():
            np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["image"]


def test_a_failed_export_leaves_the_old_file(tmp_path):
    model, _ = compacted(4, "tensor")
    path = tmp_path / "small.onnx"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="optimize cannot be given here"):
        ws.compress.export_onnx(model, (torch.randn(1, 4, 8, 8),), path, optimize=True)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ws.compress.export_onnx(lambda x: x, (torch.randn(1),), path)
    with pytest.raises(Exception, match="must have same reduction dim"):  # torch's own words
        ws.compress.export_onnx(model, (torch.randn(1, 4, 9, 9),), path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["small.onnx"]


def test_torch_export_saves_and_loads(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 8))
    ws.tie(model, bits=4)
    ws.compact(model)
    x = torch.randn(2, 512)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)
    assert os.path.getsize(tmp_path / "model.pt2") < 4 * 512 * 512 / 3


RESIDENT = """
import ctypes, gc, torch, weightshare as ws
from torch import nn
def resident():
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
torch.set_num_threads(1)
def sample(width):
    layer = nn.Linear(width, width, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(16.0).repeat(width, width // 16) - 8)
    return layer
warm = nn.Sequential(sample(64))
ws.compact(warm, block=64)
with torch.no_grad():
    warm(torch.ones(1, 64))
before = resident()
model = nn.Sequential(*(sample(2048) for _ in range(4)))
x = torch.ones(1, 2048)
with torch.no_grad():
    want = model(x)
dense = resident() - before
ws.compact(model, block=1 << 16)
with torch.no_grad():
    assert torch.allclose(model(x), want)
print(dense, resident() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_compacted_model_takes_less_resident_memory():
    """Seen from outside: 4 bits for 32, also after it has been used."""
    done = subprocess.run([sys.executable, "-c", RESIDENT], check=True, capture_output=True, text=True)
    dense, small = map(int, done.stdout.split())
    assert dense > 60 << 20
    assert small < dense / 3
