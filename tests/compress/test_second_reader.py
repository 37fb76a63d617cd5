"""The format is what docs/compression.md says: a reader that was written from the page reads every coding."""

import numpy as np
import pytest
import torch

import weightshare as ws
from compress import second_reader
from weightshare.compress.codebook import patterns


def state(seed):
    """Every coder, with and without literals, chunks that are full and not, aliases, odd names and dtypes."""
    torch.manual_seed(seed)
    skewed = torch.randn(16)[torch.multinomial(0.5 ** torch.arange(16.0), 60_001, replacement=True)]
    sparse = torch.randn(200, 300)
    sparse[torch.rand(200, 300) < 0.9] = -0.0
    return {
        "all different": torch.randn(30, 40),
        "ans": skewed.view(1, -1),
        "literals": sparse,
        "packed": torch.randn(9)[torch.randint(9, (99, 101))],
        "one value": torch.full((7, 11), float("nan")),
        "zstd": torch.randn(50).repeat(2000),
        "another name": skewed.view(1, -1),
        "many": torch.randn(3000)[(3000 * torch.rand(40_000) ** 3).long()],
        "half": torch.randn(9).bfloat16()[torch.randint(9, (5000,))],
        "truth": torch.rand(1000) < 0.2,
        "packed.codebook": torch.ones(3),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
    }


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_a_reader_written_from_the_page_reads_the_same(tmp_path, prefer):
    saved = state(0)
    saved["another name"] = saved["ans"]
    table = ws.save(saved, tmp_path / "x.ws.safetensors", prefer=prefer)
    coders = {row["coder"] for row in table if row["tensor"] != "total"}
    wanted = {"raw", "packed", "as ans"} | ({"ans", "ans, literals", "zstd"} if prefer == "size" else set())
    assert wanted <= coders
    found = second_reader.read(tmp_path / "x.ws.safetensors")
    assert list(found) == list(saved)
    for name, tensor in saved.items():
        shape, bits = found[name]
        assert shape == list(tensor.shape)
        assert np.array_equal(bits.reshape(-1), patterns(tensor))


def test_it_sees_damage_too(tmp_path):
    ws.save(state(1), tmp_path / "x.ws.safetensors")
    raw = bytearray((tmp_path / "x.ws.safetensors").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "x.ws.safetensors").write_bytes(raw)
    with pytest.raises(AssertionError):
        second_reader.read(tmp_path / "x.ws.safetensors")
