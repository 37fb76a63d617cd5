"""Tallies say what a list of all patterns and counts would; numbers made on demand are those of an array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weightshare.compress.codebook import Numbers
from weightshare.compress.encoding import encode
from weightshare.compress.tally import Tally

small = hnp.arrays(st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]), st.integers(0, 60))


def many(weights: int, distinct: int, dtype=np.uint32) -> np.ndarray:
    """Enough different patterns that they are not listed, some of them very often."""
    rng = np.random.default_rng(weights)
    bits = rng.integers(0, distinct, weights).astype(dtype) * dtype(2654435761)
    bits[rng.random(weights) < 0.1] = 7
    return bits


def agrees(bits: np.ndarray) -> None:
    values, counts = np.unique(bits, return_counts=True)
    tally = Tally.of(bits)
    sizes, patterns = np.unique(counts, return_counts=True)
    assert tally.counts.tolist() == sizes.tolist()
    assert tally.patterns.tolist() == patterns.tolist()
    for least in {1, 2, 3, *sizes[-2:].tolist(), int(counts.max(initial=0)) + 1}:
        found = tally.at_least(least)
        assert np.array_equal(found.values, values[counts >= least])
        assert np.array_equal(found.counts, counts[counts >= least])
        assert found.values.dtype == bits.dtype


@given(small)
def test_a_tally_of_few(bits):
    agrees(bits)


@pytest.mark.parametrize(("weights", "distinct"), [(200_000, 150_000), (600_000, 90_000), (300_000, 1 << 31)])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_a_tally_of_many(weights, distinct, dtype):
    bits = many(weights, distinct, dtype)
    assert isinstance(Tally.of(bits).source, np.ndarray)
    agrees(bits)


@given(small, st.data())
def test_numbers_are_places_among_the_values(bits, data):
    values = np.unique(bits)[:: data.draw(st.integers(1, 3))]
    numbers = Numbers(bits, values)
    place = {value: number for number, value in enumerate(values.tolist())}
    wanted = [place.get(value, values.size) for value in bits.tolist()]
    assert numbers[:].tolist() == wanted
    assert numbers.size == bits.size
    lo, hi = sorted((data.draw(st.integers(0, bits.size)), data.draw(st.integers(0, bits.size))))
    assert numbers[lo:hi].tolist() == wanted[lo:hi]


def test_what_is_gained_by_next_to_nothing_is_left_as_it_is():
    """A codebook for a few repeated values would cost time at every reading."""
    bits = np.arange(100_000, dtype=np.uint32)
    bits[:300] = 5
    assert encode(bits).description == {"coder": "raw"}
    bits[:6000] = 5
    assert encode(bits).description["coder"] != "raw"
