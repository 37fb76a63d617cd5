"""Counts of what is shared, against the plainest way of counting, and the paper's own measure."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DTYPES, weights
from weightshare.metrics import summary, value_counts, weight_sharing


@given(weights, st.sampled_from(DTYPES), st.integers(0, 40))
def test_counts_are_those_of_a_dictionary(values, dtype, cut):
    w = torch.tensor(values, dtype=torch.float64).to(dtype)
    w = w[torch.isfinite(w)]
    expected = Counter(w.tolist())  # 0.0 and -0.0 are one key
    got, counts = value_counts([w[:cut], w[cut:]])
    assert dict(zip(got.tolist(), counts.tolist())) == expected
    assert got.tolist() == sorted(expected)
    told = summary(w)
    assert (told.weights, told.distinct, told.zeros) == (w.numel(), len(expected), expected[0.0])
    shares = [count / w.numel() for count in expected.values()]
    assert told.entropy == pytest.approx(-sum(p * math.log2(p) for p in shares), abs=1e-12)


def test_shares_of_nothing_and_of_zeros():
    for nothing in (torch.empty(0), torch.empty(3, 0), [], [torch.empty(0)] * 2):
        told = summary(nothing)
        assert (told.weights, told.distinct, told.entropy, told.index_bits) == (0, 0, 0.0, 0.0)
        assert (told.sparsity, told.sharing) == (0.0, 0.0)
    told = summary(torch.tensor([0.0, -0.0, 2.0, 2.0, 2.0, 3.0]))
    assert told.sparsity == pytest.approx(1 / 3)
    assert told.sharing == 0.5
    assert told.index_bits == pytest.approx(math.log2(3))


def test_weight_sharing_of_the_paper():
    """Section 6.2: zeros do not count. The text gives distinct/nonzero, the table one minus that."""
    w = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.25, -0.25])
    assert weight_sharing(w) == 0.25
    assert weight_sharing(torch.randn(1000, generator=torch.Generator().manual_seed(0))) < 0.01
    assert weight_sharing(torch.zeros(5)) == 0.0


def test_what_is_not_weights_is_refused():
    with pytest.raises(TypeError, match="w must be a torch.Tensor, got list"):
        summary([[1.0]])
    with pytest.raises(TypeError, match=r"got torch.int64"):
        summary(torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="w must be finite, got nan at index 1"):
        summary([torch.zeros(1), torch.tensor([float("nan")])])
