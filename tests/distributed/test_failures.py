"""What goes wrong on one rank is told on all of them, and nobody is left hanging."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from weightshare.distributed import prox_

DTYPES = ("float32", "float64", "bfloat16", "float16")


def on_rank_not_finite(rank, ranks, dtype, d, value):
    dtype = getattr(torch, dtype)
    w = torch.randn(d, generator=torch.Generator().manual_seed(rank)).to(dtype)
    if rank == ranks - 1:
        w[d // 2] = value
    before = w.clone()
    try:
        prox_(w, 0.1)
    except ValueError as error:
        assert torch.equal(w.nan_to_num(), before.nan_to_num())
        prox_(torch.randn(10), 0.1)  # the group is as good as before
        return str(error)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [10, 40_000])
def test_not_finite_on_one_rank(ranks, dtype, d):
    for value in (float("nan"), float("inf"), float("-inf")):
        messages = ranks.run(on_rank_not_finite, dtype, d, value)
        assert len(set(messages)) == 1
        assert f"rank {ranks.count - 1} has 1 NaN or infinite entries of {d}" in messages[0]


def on_rank_differ(rank, ranks, what):
    alpha, w = 0.1, torch.randn(10)
    if what == "alpha" and rank == 1:
        alpha = 0.2
    if what == "dtype" and rank == 1:
        w = w.double()
    if what == "refused" and rank == 1:
        alpha = -1.0
    if what == "no tensor" and rank == 1:
        w = [1.0]
    try:
        prox_(w, alpha)
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("what", "first", "second"),
    [
        ("alpha", "ValueError: all ranks must give the same coefficients, got step * alpha = 0.1, 0.2", None),
        ("dtype", "ValueError: all ranks must hold weights of one dtype", None),
        ("refused", "RuntimeError: rank 1 has refused", "ValueError: alpha must be finite and >= 0"),
        ("no tensor", "RuntimeError: rank 1 has refused", "TypeError: local must be a torch.Tensor"),
    ],
)
def test_ranks_that_differ(two, what, first, second):
    told = two.run(on_rank_differ, what)
    assert told[0].startswith(first)
    assert told[1].startswith(second or first)


def on_rank_missing(rank, ranks):
    group = dist.new_group(timeout=timedelta(seconds=2))
    w = torch.randn(50_000)
    before = w.clone()
    prox_(torch.randn(3), 0.1, group=group)
    dist.barrier()
    said = None
    if rank == 0:
        start = time.monotonic()
        try:
            prox_(w, 0.1, group=group)
        except RuntimeError as error:
            said = str(error), time.monotonic() - start, torch.equal(w, before)
    dist.barrier()  # rank 1 has waited here
    return said


def test_a_rank_that_never_calls(two):
    (message, seconds, unchanged), _ = two.run(on_rank_missing)
    assert 1.0 < seconds < 60.0  # not the two minutes of the other groups
    assert unchanged
    for part in ("the agreement on the call", "rank 0 of 2", "has not made this call", "raise the timeout"):
        assert part in message


def on_rank_stopped(rank, ranks):
    """The others of a rank that fails in the middle of a call."""
    from weightshare.certified import machine

    group = dist.new_group(timeout=timedelta(seconds=2))
    w = torch.randn(50_000)
    before = w.clone()
    prox_(torch.randn(3), 0.1, group=group)
    original = machine.plan_from
    if rank == 1:

        def fail(*args):
            raise MemoryError("planted")

        machine.plan_from = fail
    try:
        prox_(w, 0.1, group=group)
    except (RuntimeError, MemoryError) as error:
        assert torch.equal(w, before)
        return str(error)
    finally:
        machine.plan_from = original
        dist.barrier()


def test_a_rank_that_fails_in_between(two):
    told = two.run(on_rank_stopped)
    assert "did not finish the list of buckets in use on rank 0 of 2" in told[0]
    assert told[1] == "planted"


def on_rank_outside(rank, ranks):
    group = dist.new_group([0])
    try:
        prox_(torch.ones(3), 0.1, group=group)
    except ValueError as error:
        return str(error)


def test_a_rank_outside_of_the_group(two):
    assert two.run(on_rank_outside) == [None, "this rank is not in group; only its members may call"]


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="init_process_group"):
        prox_(torch.ones(3), 0.1)
