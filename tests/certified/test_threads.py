"""The thread pool: slices, failures, nesting."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from weightshare.kernels.threads import run, split


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_slices_cover_the_range(n, parts):
    slices = split(n, parts)
    assert [i for lo, hi in slices for i in range(lo, hi)] == list(range(n))
    assert all(hi > lo for lo, hi in slices)
    assert len(slices) <= parts


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_task_runs_once(threads):
    done = []
    run([lambda i=i: done.append(i) for i in range(50)], threads)
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_failure_reaches_the_caller(threads):
    def fail():
        raise KeyError("task")

    with pytest.raises(KeyError, match="task"):
        run([lambda: None, fail, lambda: None], threads)
    run([lambda: None] * 3, threads)


def test_nested_runs_do_not_deadlock():
    total = []
    inner = [lambda: total.append(1)] * 4
    run([lambda: run(inner, 4)] * 40, 8)
    assert len(total) == 160


def test_tasks_do_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=20)
    run([lambda: meet.wait() and None, lambda: meet.wait() and None], 2)


def test_a_thread_that_outlives_the_main_one_works_on():
    script = """
import threading
from weightshare.kernels.threads import run

def late():
    threading.main_thread().join()
    done = []
    run([lambda: done.append(1)] * 5, 3)
    print(len(done))

threading.Thread(target=late).start()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "5\n", result.stderr
