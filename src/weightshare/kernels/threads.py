"""Run nogil kernels over slices on a shared pool of Python threads.

Compiled kernels release the GIL, so plain threads scale; no OpenMP and no parallel runtime is involved, which
is what makes this safe next to torch's own pool, from several Python threads at once, and after a fork.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

_MAX_WORKERS = 256  # an upper bound only: the executor starts a thread when none is idle

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """The process-wide executor, made on first use."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_MAX_WORKERS, thread_name_prefix="weightshare")
        return _pool


def _forget_after_fork() -> None:
    """A forked child owns none of the parent's threads, and its lock may have been copied while held."""
    global _pool, _lock
    _pool = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class _Job:
    """A list of tasks from which every participating thread draws the next one."""

    def __init__(self, tasks: Sequence[Callable[[], None]]) -> None:
        self._tasks = tasks
        self._next = 0
        self._lock = threading.Lock()
        self.failures: list[tuple[int, BaseException]] = []

    def work(self) -> None:
        """Draw and run tasks until none is left or one has failed."""
        while True:
            with self._lock:
                index = self._next
                if index >= len(self._tasks) or self.failures:
                    return
                self._next = index + 1
            try:
                self._tasks[index]()
            except BaseException as error:
                with self._lock:
                    self.failures.append((index, error))
                return

    def forget(self) -> None:
        """Let go of the tasks: what was cancelled stays in the pool's queue until a thread looks at it."""
        with self._lock:
            self._tasks = ()


def run(tasks: Sequence[Callable[[], None]], threads: int) -> None:
    """Run every task, on at most ``threads`` threads with the calling one; return when all have ended.

    The first failure (lowest task index among those that failed) is raised; tasks not yet begun are dropped.
    The caller works too, so a call from inside a task cannot deadlock however busy the pool is.

    >>> done = []
    >>> run([lambda i=i: done.append(i) for i in range(4)], threads=2)
    >>> sorted(done)
    [0, 1, 2, 3]
    """
    helpers = min(threads, len(tasks)) - 1
    if helpers <= 0:
        for task in tasks:
            task()
        return
    job = _Job(tasks)
    pool = _executor()
    futures: list[Future[None]] = []
    with suppress(RuntimeError):  # where no thread can be started any more (the interpreter ends), the caller
        futures.extend(pool.submit(job.work) for _ in range(helpers))  # does all of the work
    job.work()
    wait([future for future in futures if not future.cancel()])
    job.forget()
    if job.failures:
        raise min(job.failures, key=lambda failure: failure[0])[1]


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``range(n)`` into at most ``parts`` contiguous, near-equal, non-empty slices.

    >>> split(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    parts = max(1, min(parts, n))
    size, extra = divmod(n, parts)
    edges = [i * size + min(i, extra) for i in range(parts + 1)]
    return [(lo, hi) for lo, hi in itertools.pairwise(edges) if hi > lo]
