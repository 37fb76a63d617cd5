"""How small files are: against the entropy, against the other codings, against the paper's formula."""

import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import weightshare as ws
from compress.samples import bits_of, model_state, tensor
from weightshare.compress import Reader, estimate

MANY = 1_000_000
SLACK = 32  # bytes: lengths and frequencies of a stream that is itself a few bytes


def shares_of(law, k, rng):
    """How likely each of k values is."""
    rank = np.arange(1.0, k + 1)
    shares = {
        "uniform": np.ones(k),
        "zipf": 1 / rank,
        "flat zipf": rank**-0.6,
        "geometric": 0.7 ** np.minimum(rank, 1000),
        "mostly zero": np.r_[1e4 * k, np.ones(k - 1)],
        "random": rng.random(k) ** 4,
    }[law]
    return shares / shares.sum()


def bound_of(weight):
    """Bytes of the entropy of order zero and of the codebook, by NumPy alone."""
    values, counts = np.unique(weight.view(f"u{weight.itemsize}"), return_counts=True)
    share = counts / counts.sum()
    return -(counts * np.log2(share)).sum() / 8 + values.nbytes


@settings(max_examples=15)
@given(
    st.sampled_from(["uniform", "zipf", "flat zipf", "geometric", "mostly zero", "random"]),
    st.floats(1, 18.5).map(lambda bits: round(2**bits)),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.integers(0, 99),
)
def test_within_two_percent_of_entropy_and_codebook(tmp_path_factory, law, k, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (k, np.dtype(dtype).itemsize), np.uint8).view(dtype)[:, 0]
    weight = values[rng.choice(k, MANY, p=shares_of(law, k, rng))]
    path = tmp_path_factory.getbasetemp() / "large"
    ws.save({"w": torch.from_numpy(weight)}, path)
    assert Reader(path).stored_bytes("w") <= 1.02 * bound_of(weight) + SLACK
    assert path.stat().st_size <= Reader(path).stored_bytes("w") + 1000


@pytest.mark.parametrize("k", [1 << 17, 150_000])
def test_many_values_that_occur_a_few_times(k, tmp_path):
    """The frequencies alone would be more than two percent."""
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 1 << 32, k, np.uint32)[rng.integers(0, k, MANY)].view(np.float32)
    ws.save({"w": torch.from_numpy(weight)}, tmp_path / "file")
    assert Reader(tmp_path / "file").stored_bytes("w") <= 1.02 * bound_of(weight) + SLACK


def test_each_tensor_takes_the_coder_that_is_smallest(tmp_path):
    coders = {"packed.weight": "packed", "ans.weight": "ans", "zstd.weight": "zstd", "raw": "raw"}
    ws.save(model_state(), tmp_path / "file")
    reader = Reader(tmp_path / "file")
    assert {name: reader.coder(name) for name in coders} == coders
    assert reader.stored_bytes("zstd.weight") < 0.05 * 16 * 700 / 2
    assert reader.stored_bytes("literals") < 1.05 * (
        4 * model_state()["literals"].count_nonzero() + 9000 / 8 * 0.3
    )


def test_incompressible_tensors_stay_as_they_are(tmp_path):
    state = {"w": tensor(torch.float32, (100_000,)), "b": torch.randn(10)}
    done = ws.save(state, tmp_path / "file")
    assert done["w"]["coder"] == done["b"]["coder"] == "raw"
    assert (tmp_path / "file").stat().st_size < 400_040 + 1000


def test_estimate_says_what_save_does(tmp_path):
    state = model_state()
    ws.save(state, tmp_path / "file")
    reader = Reader(tmp_path / "file")
    told, stored = estimate(state), estimate(reader)
    assert [row["tensor"] for row in told] == [name for name in state if name != "tied.weight"] + ["total"]
    for name in state:
        if name != "tied.weight":
            assert told[name]["bytes"] == coded_bytes(told, reader, name)
            assert {**stored[name], "coder": 0, "bytes": 0, "bits": 0} == {
                **told[name], "coder": 0, "bytes": 0, "bits": 0,
            }  # fmt: skip
    assert stored["total"]["bytes"] == sum(reader.stored_bytes(name) for name in state)


def coded_bytes(told, reader, name):
    """What the file has; a coding that gains less than its place in the header is not taken."""
    if reader.coder(name) == "raw" and told[name]["coder"] != "raw":
        assert told[name]["bytes"] > told[name]["as it is"] - 500
        return told[name]["bytes"]
    return reader.stored_bytes(name)


def test_the_columns_of_estimate():
    w = torch.tensor([0.0, -0.0, 1.5, 1.5] * 1000)
    table = estimate({"w": w, "n": torch.arange(100), "c": torch.zeros(50, dtype=torch.complex64)})
    row = table["w"]
    assert (row["weights"], row["distinct"], row["entropy"]) == (4000, 3, 1.5)
    assert (row["as it is"], row["fp32"], row["fp16"], row["int8"]) == (16_000, 16_000, 8000, 4000)
    assert row["paper"] == math.ceil((3 * 32 + 4000 * math.log2(3)) / 8)
    assert row["zip"] == len(zlib.compress(bytes(bits_of(w).tolist()), 6))
    assert row["bits"] == 8 * row["bytes"] / 4000
    assert (table["n"]["fp32"], table["n"]["fp16"], table["n"]["int8"]) == (800, 800, 800)
    assert (table["c"]["fp32"], table["c"]["fp16"]) == (400, 200)
    total = table["total"]
    for column in ("weights", "bytes", "as it is", "fp32", "fp16", "int8", "zip", "paper"):
        assert total[column] == sum(table[name][column] for name in "wnc")
    assert "zip" not in estimate({"w": w}, zip=False)["w"]


def test_estimate_of_a_model_counts_shared_weights_once():
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
    model[1].weight = model[0].weight
    assert estimate(model)["total"]["weights"] == 1600
    assert estimate({})["total"]["bytes"] == 0
    assert estimate({"e": torch.empty(0)})["e"]["bits"] == 0.0


def test_estimate_refuses_what_cannot_be_saved():
    for call in (estimate, lambda state: ws.save(state, "nowhere")):
        with pytest.raises(TypeError, match="'s' is no tensor but str"):
            call({"s": "text"})
        with pytest.raises(TypeError, match="complex128"):
            call({"z": torch.ones(1, dtype=torch.complex128)})
