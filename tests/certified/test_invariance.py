"""The result is a function of the weights: not of their order, the threads, the route, or the hint."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch

import weightshare as ws
from certified.zoo import CELL, ZOO, draw, value_of
from weightshare import certified
from weightshare.certified import prox_array

SIZES = [1000, 40_000]


def bits(w):
    """Bit patterns, so that -0.0 and 0.0 differ."""
    return w.view(np.uint32 if w.dtype == np.float32 else np.uint64)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("d", SIZES)
def test_routes_agree_bitwise(name, d):
    w, alpha = draw(name, 5, d)
    for beta, scale in ((0.0, 1.0), (0.01, 0.5)):
        small = prox_array(w, alpha=alpha, beta=beta, scale=scale, route="small", ids=True)
        for route in ("certified", "partition"):
            other = prox_array(w, alpha=alpha, beta=beta, scale=scale, route=route, ids=True, threads=2)
            np.testing.assert_array_equal(bits(other.out), bits(small.out))
            np.testing.assert_array_equal(other.clusters.starts, small.clusters.starts)
            np.testing.assert_array_equal(other.clusters.ids, small.clusters.ids)
            assert other.zeros == small.zeros


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_and_permutations_change_nothing(name, dtype):
    w, alpha = draw(name, 7, 30_000)
    w = w.astype(dtype)
    order = np.random.default_rng(1).permutation(w.size)
    first = prox_array(w, alpha=alpha, beta=0.01, scale=0.7, threads=1)
    for threads in (2, 3, 5):
        again = prox_array(w, alpha=alpha, beta=0.01, scale=0.7, threads=threads)
        np.testing.assert_array_equal(bits(again.out), bits(first.out))
        moved = prox_array(w[order], alpha=alpha, beta=0.01, scale=0.7, threads=threads)
        np.testing.assert_array_equal(bits(moved.out), bits(first.out[order]))


@pytest.mark.parametrize("name", ZOO)
def test_a_hint_changes_nothing(name):
    w, alpha = draw(name, 9, 20_000)
    plain = prox_array(w, alpha=alpha, route="certified", ids=True)
    r = np.random.default_rng(0)
    wrong = (r.standard_normal(50) * 3, r.integers(1, 5000, 50))
    for hint in (plain.clusters, wrong, (np.array([np.nan, 1e300]), np.array([900, 900]))):
        hinted = prox_array(w, alpha=alpha, route="certified", ids=True, hint=hint)
        np.testing.assert_array_equal(bits(hinted.out), bits(plain.out))
        np.testing.assert_array_equal(hinted.clusters.starts, plain.clusters.starts)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("route", ["small", "certified", "partition"])
def test_in_place_and_monotone_and_tied(name, route):
    w, alpha = draw(name, 11, 5000)
    for beta, scale in ((0.0, 1.0), (0.03, 1.0), (0.0, 0.3)):
        out = prox_array(w, alpha=alpha, beta=beta, scale=scale, route=route).out
        again = w.copy()
        prox_array(again, again, alpha=alpha, beta=beta, scale=scale, route=route, threads=2)
        np.testing.assert_array_equal(bits(again), bits(out))
        order = np.argsort(w, kind="stable")
        assert (np.diff(out[order].astype(np.float64)) >= 0).all()
        tied = np.flatnonzero(np.diff(w[order]) == 0)
        np.testing.assert_array_equal(bits(out[order])[tied], bits(out[order])[tied + 1])


def test_several_python_threads_at_once():
    inputs = [
        draw(name, 1, 60_000) for name in ("gaussian", "cluster_and_tail", "tight_clusters", "heavy_tail")
    ]
    expected = [prox_array(w, alpha=alpha).out for w, alpha in inputs]
    failures = []

    def work(k):
        for _ in range(5):
            w, alpha = inputs[k]
            if not np.array_equal(prox_array(w, alpha=alpha, threads=3).out, expected[k]):
                failures.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_forked_child():
    w, alpha = draw("gaussian", 1, 50_000)
    expected = prox_array(w, alpha=alpha, threads=2).out
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(prox_array(w, alpha=alpha, threads=2).out, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ZOO)
def test_long_float64_vectors_agree_with_short_ones(name):
    w, alpha = draw(name, 13, 150_000)
    w = w.astype(np.float64)
    short = prox_array(w, alpha=alpha, beta=0.01, scale=0.5, route="small", ids=True)
    long = prox_array(w, alpha=alpha, beta=0.01, scale=0.5, threads=3, ids=True)
    assert long.info.route == "partition" or w.size <= 1 << 15
    np.testing.assert_array_max_ulp(long.out, short.out, 1)
    np.testing.assert_array_equal(long.clusters.starts, short.clusters.starts)
    np.testing.assert_array_equal(long.clusters.ids, short.clusters.ids)
    assert long.zeros == short.zeros


def test_words_of_count_and_sum_do_not_overflow():
    cell = 0x3F8 + 0x800  # [1, 1.125): as many of its largest values as make the sum of low bits largest
    n, few = (1 << 22) + 3, 5
    keys = np.full(n, cell * CELL + CELL - 1)
    keys[:few] = cell * CELL
    w = value_of(keys)
    for threads in (1, 2):
        result = prox_array(w, alpha=1e-9, route="certified", clusters=True, threads=threads)
        assert result.clusters.starts.tolist() == [0, few]
        assert result.clusters.sums.tolist() == [few * float(w[0]), (n - few) * float(w[-1])]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_are_as_many_as_torch_has(count, monkeypatch):
    asked = []

    def spy(*arrays, threads, **options):
        asked.append(threads)
        return prox_array(*arrays, threads=threads, **options)

    monkeypatch.setattr(certified, "prox_array", spy)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        ws.prox(torch.randn(100), 0.1)
    finally:
        torch.set_num_threads(before)
    assert asked == [count]
