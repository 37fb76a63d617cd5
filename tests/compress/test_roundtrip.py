"""What is saved comes back bit for bit, whatever it is, in files that others can open."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import weightshare as ws
from compress.samples import (
    CONTENTS,
    DTYPES,
    SHAPES,
    assert_same,
    bits_of,
    layouts,
    model_state,
    same,
    tensor,
)
from weightshare.compress import Reader
from weightshare.compress.coders.ans import weights_of
from weightshare.compress.coders.zstd import unsqueeze
from weightshare.compress.dtypes import code_of


@pytest.mark.parametrize("prefer", ["size", "speed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_shape_and_content(dtype, prefer, tmp_path):
    state = {
        f"{content} {shape}": tensor(dtype, shape, content, seed)
        for seed, (content, shape) in enumerate((c, s) for c in CONTENTS for s in SHAPES)
        if shape or code_of(dtype) != "F4"
    }
    ws.save(state, tmp_path / "file", prefer=prefer)
    assert_same(ws.load(tmp_path / "file"), state)


def test_every_pattern_of_16_bits(tmp_path):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    state = {
        str(dtype): every.view(dtype).repeat(3) for dtype in (torch.float16, torch.bfloat16, torch.int16)
    }
    ws.save(state, tmp_path / "file")
    assert_same(ws.load(tmp_path / "file"), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zeros_of_both_signs_and_nans_are_themselves(dtype, tmp_path):
    width = {torch.float64: torch.int64, torch.float32: torch.int32}[dtype]
    exponent = 0x7FF << 52 if dtype == torch.float64 else 0xFF << 23
    payloads = exponent + torch.arange(1, 300, dtype=width)
    nans = torch.cat([payloads, payloads | torch.iinfo(width).min]).view(dtype)
    assert nans.isnan().all()
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)[torch.arange(5000) % 7 % 2]
    state = {"nans": nans.repeat(50), "zeros": zeros}
    ws.save(state, tmp_path / "file")
    assert_same(ws.load(tmp_path / "file"), state)


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_every_layout_reads_as_it_reads(prefer, tmp_path):
    ws.save(layouts(), tmp_path / "file", prefer=prefer)
    assert_same(ws.load(tmp_path / "file"), layouts())


def test_the_smallest_and_the_largest_codebooks(tmp_path):
    many = torch.arange(1 << 18, dtype=torch.int32)
    state = {
        "all distinct": many,
        "pairs": many.repeat_interleave(2),
        "triples": many[: 1 << 16].repeat(3),
        "huge ties": torch.zeros(1 << 20, dtype=torch.int64),
        "one": torch.tensor([3.0]),
        "bytes": torch.arange(256, dtype=torch.uint8).repeat(20),
        **{f"{k} values": torch.arange(5000) % k for k in (2, 3, 4, 5, 255, 256, 257)},
    }
    ws.save(state, tmp_path / "file")
    assert_same(ws.load(tmp_path / "file"), state)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(
    lambda name: name != "__metadata__"
)
states = st.dictionaries(
    names,
    st.builds(
        tensor,
        st.sampled_from([d for d in DTYPES if code_of(d) != "F4"]),
        st.lists(st.integers(0, 40), max_size=2).map(tuple),
        st.sampled_from(CONTENTS),
        st.integers(0, 99),
    ),
    max_size=8,
)


def plain_size(state):
    """Bytes of plain safetensors, as the library writes it."""
    return len(safetensors.torch.save({name: t.contiguous().clone() for name, t in state.items()}))


@settings(max_examples=60)
@given(states, st.sampled_from(["size", "speed"]))
def test_anything_comes_back_from_a_file_that_is_hardly_larger(tmp_path_factory, state, prefer):
    path = tmp_path_factory.getbasetemp() / "any"
    ws.save(state, path, prefer=prefer)
    assert_same(ws.load(path), state)
    assert path.stat().st_size <= 1.01 * plain_size(state) + 4096


@pytest.mark.parametrize("count", [12, 40, 90, 300])
@pytest.mark.parametrize("length", [5, 60, 400])
def test_many_small_tensors_with_long_names_are_hardly_larger(count, length, tmp_path):
    """Where what a coding gains is less than what the header has to say about it."""
    for k in (1, 2, 4):
        state = {f"{i:03}{'x' * length}": (torch.arange(count) % k).float() for i in range(300)}
        ws.save(state, tmp_path / "file")
        assert (tmp_path / "file").stat().st_size <= 1.01 * plain_size(state) + 4096
        assert_same(ws.load(tmp_path / "file"), state)


def test_names_that_look_like_parts(tmp_path):
    w = torch.arange(4.0).repeat(200)
    state = {
        "w": w,
        "w.codebook": w + 1,
        "w.codebook.codebook": w + 2,
        "w..indices": w + 3,
        "": w + 4,
        ".codebook": w + 5,
        "weightshare.checksums": w + 6,
        "w.literals": torch.randn(9),
    }
    ws.save(state, tmp_path / "file")
    assert_same(ws.load(tmp_path / "file"), state)


def test_shared_tensors_stay_shared(tmp_path):
    shared = torch.arange(6.0).repeat(100)
    state = {
        "b": torch.ones(3),
        "a": shared,
        "c": shared,
        "view": shared[::2],
        "z": shared.view(-1, 6),
        "a2": shared,
    }
    state["empty 1"] = state["empty 2"] = torch.empty(0)
    done = ws.save(state, tmp_path / "file")
    found = ws.load(tmp_path / "file")
    assert_same(found, state)
    assert found["a"] is found["c"] is found["a2"]
    assert found["z"].data_ptr() != found["a"].data_ptr()
    assert done["c"]["after"] == 0
    reader = Reader(tmp_path / "file")
    assert (reader.alias("c"), reader.alias("a")) == ("a", None)
    assert len(reader) == len(state)


def test_a_module_and_its_state_dict_make_the_same_file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 20), nn.BatchNorm1d(20), nn.Linear(20, 50, bias=False))
    model[2].weight = model[0].weight
    ws.tie(model, "0.weight", bits=3)
    ws.save(model, tmp_path / "model")
    ws.save(model.state_dict(), tmp_path / "state")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "state").read_bytes()
    other = nn.Sequential(nn.Embedding(50, 20), nn.BatchNorm1d(20), nn.Linear(20, 50, bias=False))
    other.load_state_dict(ws.load(tmp_path / "model"))
    assert_same(other.state_dict(), model.state_dict())


def test_a_compacted_model_is_saved_too(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 10))
    ws.tie(model, bits=2)
    ws.compact(model)
    ws.save(model, tmp_path / "file")
    assert_same(ws.load(tmp_path / "file"), model.state_dict())


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_the_library_opens_it_and_the_parts_mean_what_they_say(prefer, tmp_path):
    """An independent reader: the library's tensors, NumPy's bits, constriction's own decoder."""
    state = model_state()
    ws.save(state, tmp_path / "file", prefer=prefer, metadata={"license": "MIT", "ü": '"'})
    with safetensors.safe_open(tmp_path / "file", framework="pt") as file:
        words = file.metadata()
        parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about = json.loads(words.pop("weightshare"))
    assert words == {"license": "MIT", "ü": '"'}
    assert (about["version"], about["separator"]) == (1, ".")
    coders = {one["coder"] for one in about["tensors"].values()}
    assert coders == ({"packed"} if prefer == "speed" else {"packed", "ans", "zstd"})
    assert about["aliases"] == {"tied.weight": ["packed.weight", len(state) - 1]}
    for name, wanted in state.items():
        if name in about["tensors"]:
            found = decoded(name, about["tensors"][name], parts)
            assert torch.equal(found, bits_of(wanted)), name
        elif name not in about["aliases"]:
            assert same(parts[name], wanted)


def decoded(name, coding, parts):
    """The bytes of a tensor, from its parts, by the description alone."""
    codebook = parts[f"{name}.codebook"]
    count, indices = int(np.prod(coding["shape"])), parts[f"{name}.indices"].numpy()
    distinct = len(codebook) + ("literals" in coding)
    if coding["coder"] == "packed":
        numbers = unpacked(indices, coding["bits"], count)
    elif coding["coder"] == "zstd":
        numbers = unzipped(indices, coding, count)
    else:
        numbers = popped(indices, parts[f"{name}.frequencies"].numpy(), coding["chunk"], count, distinct)
    table, rest = bits_of(codebook).view(len(codebook), -1), iter(())
    if "literals" in coding:
        rest = iter(bits_of(parts[f"{name}.literals"]).view(coding["literals"], -1))
    return torch.cat([table[i] if i < len(table) else next(rest) for i in numbers.tolist()])


def unpacked(stream, bits, count):
    each = np.unpackbits(stream, bitorder="little")[: count * bits].reshape(count, bits).astype(np.int64)
    return each @ (1 << np.arange(bits))


def chunks_of(payload, chunk, count):
    number = -(-count // chunk)
    head = number * 4 // payload.itemsize
    edges = head + np.concatenate([[0], np.cumsum(payload[:head].view("<u4").astype(np.int64))])
    for i in range(number):
        yield payload[edges[i] : edges[i + 1]], min(chunk, count - i * chunk)


def unzipped(payload, coding, count):
    import zstandard

    frames = chunks_of(payload, coding["chunk"], count)
    plain = [(zstandard.ZstdDecompressor().decompress(frame.tobytes()), size) for frame, size in frames]
    return np.concatenate(
        [unpacked(np.frombuffer(text, np.uint8), coding["bits"], size) for text, size in plain]
    )


def popped(words, frequencies, chunk, count, distinct):
    import constriction

    weights = weights_of(unsqueeze(frequencies, distinct))
    model = constriction.stream.model.Categorical((weights - 1).astype(np.float64), perfect=False)
    coders = [
        (constriction.stream.stack.AnsCoder(part), size) for part, size in chunks_of(words, chunk, count)
    ]
    return np.concatenate([coder.decode(model, size) for coder, size in coders])


def test_bytes_do_not_depend_on_threads_or_on_the_process(tmp_path):
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            ws.save(model_state(), tmp_path / str(threads))
    finally:
        torch.set_num_threads(before)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import weightshare as ws; "
        "from compress.samples import model_state; ws.save(model_state(), sys.argv[2])"
    )
    tests = str(Path(__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code, tests, str(tmp_path / "process")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    first, *others = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert len(others) == 2
    assert all(other == first for other in others)


def test_rows_of_every_coder(tmp_path):
    state = model_state()
    ws.save(state, tmp_path / "file")
    reader = Reader(tmp_path / "file")
    assert {reader.coder(name) for name in reader} == {"raw", "packed", "ans", "zstd"}
    for name, wanted in state.items():
        assert reader.form(name) == (code_of(wanted.dtype), tuple(wanted.shape))
        if not wanted.ndim:
            with pytest.raises(ValueError, match="rows 0 to 1 are not in 'steps'"):
                reader.rows(name, 0, 1)
            continue
        n = len(wanted)
        for start, stop in [(0, n), (0, 0), (n, n), (n // 3, n // 2), (max(n - 1, 0), n)]:
            assert same(reader.rows(name, start, stop), wanted[start:stop]), (name, start, stop)
        for start, stop in [(-1, 0), (0, n + 1), (1, 0)]:
            with pytest.raises(ValueError, match="are not in"):
                reader.rows(name, start, stop)


def test_what_is_loaded_is_free_of_the_file(tmp_path):
    ws.save(model_state(), tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    found = ws.load(tmp_path / "file")
    for value in found.values():
        value.zero_()
    assert (tmp_path / "file").read_bytes() == before
    assert_same(ws.load(tmp_path / "file"), model_state())
    (tmp_path / "file").unlink()
    assert not any(value.count_nonzero() for value in found.values())


def test_the_report_adds_up(tmp_path):
    state = model_state()
    seen = []
    done = ws.save(state, tmp_path / "file", progress=lambda *told: seen.append(told))
    reader = Reader(tmp_path / "file")
    for name in state:
        assert done[name]["after"] == reader.stored_bytes(name)
        assert done[name]["before"] == state[name].nbytes
        assert done[name]["coder"].split(",")[0] == (
            reader.coder(name) if reader.alias(name) is None else "as packed.weight"
        )
    assert done["total"]["before"] == sum(t.nbytes for t in state.values())
    assert [name for name, _, _ in seen] == list(state)
    assert seen[-1][1] == seen[-1][2] == done["total"]["before"]
