"""What a call takes beyond its input and its output."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from certified.zoo import draw
from weightshare.certified import prox_array

TABLES = 2 << 20  # bytes, whatever the length


def extra(w, alpha, **options):
    """Most bytes held during a call beyond those held before."""
    out = np.empty_like(w)
    prox_array(w, out, alpha=alpha, **options)
    tracemalloc.start()
    try:
        prox_array(w, out, alpha=alpha, threads=2, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["gaussian", "heavy_tail", "interleaved", "from_bf16", "one_cell"])
def test_what_has_to_be_sorted_takes_three_times_its_input_at_most(name):
    w, _ = draw(name, 2, 1 << 20)
    assert extra(w, 1e-6) <= 3 * w.nbytes + TABLES
    assert extra(w.astype(np.float64), 1e-6) <= 3 * 2 * w.nbytes + TABLES


def test_what_the_certificate_retires_takes_tables_only():
    r = np.random.default_rng(0)
    w = (r.integers(-2, 3, 1 << 21) / 4 + 2e-5 * r.standard_normal(1 << 21)).astype(np.float32)
    assert extra(w, 1e-3) <= 0.05 * w.nbytes + TABLES
    halves = (w.view(np.uint32) >> 16).astype(np.uint16)
    assert extra(halves, 1e-3, format="bf16") <= 3 * TABLES  # counts of 65,536 patterns


def test_a_tail_takes_two_words_for_each_weight_of_it():
    r = np.random.default_rng(0)
    w = (0.1 + 2e-5 * r.standard_normal(1 << 21)).astype(np.float32)
    tail = r.random(w.size) < 0.1
    w[tail] = r.standard_normal(int(tail.sum()))
    assert extra(w, 1e-3) <= 8.5 * tail.sum() + TABLES
