"""Processes that stand for ranks: started once for each world size, told to run functions of a test file."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

PATIENCE = 180  # seconds after which a function that has not returned counts as hanging


class Ranks:
    """``count`` processes in one gloo group; ``run(f, *args)`` calls ``f(rank, count, *args)`` in each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        meeting = tempfile.mktemp(dir=self._folder.name)  # the group makes the file itself
        self._members = []
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.count, meeting, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))

    def run(self, function, *args):
        """What every rank returned; raises with all tracebacks if one has failed or hangs."""
        job = (function.__code__.co_filename, function.__name__, args)
        for _, pipe in self._members:
            pipe.send(job)
        answers = [pipe.recv() if pipe.poll(PATIENCE) else (False, "no answer") for _, pipe in self._members]
        failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        if failures:
            self.stop()
            self._start()  # the group of the old processes may be broken
            raise AssertionError("\n".join(failures))
        return [result for _, result in answers]

    def stop(self) -> None:
        """End the processes."""
        for process, _ in self._members:
            process.kill()
            process.join()


def _serve(rank, count, meeting, pipe):
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    modules = {}
    while True:
        try:
            file, name, args = pipe.recv()
        except EOFError:
            return
        try:
            if file not in modules:
                spec = importlib.util.spec_from_file_location(f"ranks_{len(modules)}", file)
                modules[file] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(modules[file])
            pipe.send((True, getattr(modules[file], name)(rank, count, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
