"""Tensors of every dtype, layout and content, and what it means that two of them are the same."""

import numpy as np
import torch

from weightshare.compress.dtypes import _KNOWN

DTYPES = [getattr(torch, name) for name, _ in _KNOWN.values() if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (3, 0, 2), (1001,), (5, 3, 67), (1,) * 9]
CONTENTS = ["any", "constant", "two", "few", "sparse", "rare"]


def random_bits(dtype, count, content, rng):
    """``count`` bit patterns of a dtype: any at all (all NaN payloads among them), or few of them."""
    size = torch.empty(0, dtype=dtype).element_size()
    few = {"any": count, "constant": 1, "two": 2, "few": 29, "sparse": count, "rare": 40}[content]
    table = rng.integers(0, 256, (max(few, 1), size), np.uint8)
    if dtype == torch.bool:
        table &= 1
    if content == "any":
        return table[:count]
    choice = rng.integers(0, few, count) if few else np.zeros(count, np.int64)
    if content == "sparse":
        table[0] = 0
        choice[rng.random(count) < 0.9] = 0
    if content == "rare":
        choice[rng.random(count) < 0.95] = 3
    return table[choice]


def tensor(dtype, shape, content="any", seed=0):
    """A contiguous tensor of random bits."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if not count:
        return torch.empty(shape, dtype=dtype)
    bits = torch.from_numpy(random_bits(dtype, count, content, rng).reshape(-1).copy())
    return bits.view(dtype).reshape(shape)


def bits_of(tensor):
    """The bytes of a tensor in logical order."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def same(a, b):
    """Whether dtype, shape and every bit agree."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits_of(a), bits_of(b))


def assert_same(found, wanted):
    """The same names in the same order, and the same tensors."""
    assert list(found) == list(wanted)
    for name in wanted:
        assert same(found[name], wanted[name]), name


def layouts():
    """Tensors that do not lie in memory as they read."""
    base = tensor(torch.float32, (8, 9, 10), "few")
    cx = tensor(torch.complex64, (30, 7), "few")
    return {
        "transposed": base.transpose(0, 2),
        "strided": base[::2, 1:, ::3],
        "expanded": torch.tensor([1.5, -0.0]).view(2, 1).expand(2, 500),
        "flipped view": base[:, :, 3],
        "conjugated": cx.conj(),
        "negative": torch.tensor([1 + 2j, 3 - 4j] * 50).conj().imag,
        "real part": cx.real,
        "channels last": base.view(2, 9, 8, 5).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.ones(300)),
        "offset": base.view(-1)[3:-1],
        "zero stride scalar": torch.ones(1).expand(1000)[5],
    }


def model_state():
    """A state_dict with a tensor for every coder, some shared, some empty."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(16, generator=generator)
    pick = torch.randint(16, (300, 64), generator=generator)
    skew = (torch.rand(20_000, generator=generator) ** 6 * 12).long()
    mask = torch.rand(9_000, generator=generator) < 0.05
    state = {
        "packed.weight": values[pick],
        "ans.weight": values[skew].view(200, 100),
        "zstd.weight": values[torch.arange(16).repeat_interleave(700)],
        "literals": torch.randn(9_000, generator=generator).where(mask, 0.0),
        "raw": torch.randn(40, 11, generator=generator),
        "norm.bias": torch.zeros(64),
        "steps": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "half": values[pick].to(torch.bfloat16)[:50],
        "mask": mask,
    }
    state["tied.weight"] = state["packed.weight"]
    return state
