"""Several runs, one after another or side by side in processes. One that fails does not keep the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from weightshare.experiments import recipes, train
from weightshare.experiments.config import Config
from weightshare.experiments.data import locate
from weightshare.experiments.files import DiskFull
from weightshare.experiments.folder import DEFAULT_ROOT
from weightshare.experiments.watch import Stopped, Watch

FINISHED, SKIPPED, STOPPED, FAILED = "finished", "skipped", "stopped", "failed"

_QUIET_SECONDS = 0.1  # at least this long between two messages of a process about its steps


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``status`` is finished, skipped (it was finished before), stopped or failed."""

    config: Config
    folder: Path
    status: str
    message: str = ""
    full: bool = False
    """Whether it failed because the disk is full, as the next one would."""


class Show:
    """What is told about the runs, and who may stop them; those who want to see something override it."""

    def begin(self, config: Config) -> Watch:
        """A run begins; what is returned is told of its events."""
        return Watch()

    def end(self, outcome: Outcome) -> None:
        """A run is over, or not even begun."""

    def stop(self) -> bool:
        """Whether all runs shall save a checkpoint and stop."""
        return False


@dataclass(frozen=True)
class Options:
    """Those of :func:`weightshare.experiments.train.run`, for all runs alike."""

    root: Path = DEFAULT_ROOT
    resume: bool = True
    tensorboard: bool = True
    checkpoint_seconds: float = train.CHECKPOINT_SECONDS


DEFAULTS = Options()


def check(configs: Sequence[Config], options: Options = DEFAULTS) -> None:
    """Raise for what can be known before anything is run: missing data, no such device, folders in use."""
    for name in dict.fromkeys(config.dataset for config in configs):
        if name != "digits":
            locate.files_of(name)
    for config in {config.device: config for config in configs}.values():
        train.device_of(config)
    folders: dict[Path, Config] = {}
    for config in configs:
        folder = recipes.folder(config, options.root)
        if folder in folders:
            raise ValueError(f"{config.recipe} with seed {config.seed} was asked for twice, in {folder}")
        folders[folder] = config
        if options.resume:
            train.existing(folder, config)


def run_all(
    configs: Sequence[Config], options: Options = DEFAULTS, *, jobs: int = 1, show: Show | None = None
) -> list[Outcome]:
    """Do the runs in their order, ``jobs`` at a time; finished ones are skipped.

    A run that fails is told, and the others go on, unless the disk is full. With several jobs each run has a
    process of its own and its share of the processors, where its config leaves ``threads`` open.

    >>> import tempfile
    >>> options = Options(Path(tempfile.mkdtemp()), tensorboard=False)
    >>> config = recipes.recipe("digits/mlp", "smoke", epochs=1)
    >>> [outcome.status for _ in range(2) for outcome in run_all([config], options)]
    ['finished', 'skipped']
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    show = show or Show()
    check(configs, options)
    waiting, outcomes = [], []
    for config in configs:
        folder = recipes.folder(config, options.root)
        if options.resume and (folder / "summary.json").is_file():
            outcomes.append(Outcome(config, folder, SKIPPED))
            show.end(outcomes[-1])
        else:
            waiting.append(config)
    if jobs == 1 or len(waiting) < 2:
        return outcomes + _in_turn(waiting, options, show)
    return outcomes + _Pool(waiting, options, show, jobs).work()


def _in_turn(configs: Sequence[Config], options: Options, show: Show) -> list[Outcome]:
    outcomes: list[Outcome] = []
    full = False
    for config in configs:
        if full or show.stop():
            outcomes.append(_not_begun(config, options))
            continue
        outcome = _one(config, options, relay(show.begin(config), show.stop))
        outcomes.append(outcome)
        show.end(outcome)
        full = outcome.full
    return outcomes


def _not_begun(config: Config, options: Options) -> Outcome:
    return Outcome(config, recipes.folder(config, options.root), STOPPED, "not begun")


def _one(config: Config, options: Options, watch: Watch) -> Outcome:
    """A run, and how it ended: errors become outcomes, since the other runs can go on."""
    folder = recipes.folder(config, options.root)
    try:
        train.run(
            config,
            options.root,
            resume=options.resume,
            watch=watch,
            tensorboard=options.tensorboard,
            checkpoint_seconds=options.checkpoint_seconds,
        )
    except Stopped as stopped:
        return Outcome(config, folder, STOPPED, str(stopped))
    except DiskFull as error:
        return Outcome(config, folder, FAILED, str(error), full=True)
    except (ValueError, OSError) as error:
        return Outcome(config, folder, FAILED, str(error))
    except Exception:
        return Outcome(config, folder, FAILED, traceback.format_exc())
    return Outcome(config, folder, FINISHED)


class Relay(Watch):
    """Passes the events of a run on to a function, and asks another one whether to stop."""

    def __init__(self, send: Callable[..., None], stop: Callable[[], bool]) -> None:
        self._send, self._stop = send, stop

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        self._send("started", epochs, epoch, steps)

    def step(self, epoch: int, step: int) -> None:
        self._send("step", epoch, step)

    def epoch(self, row: dict[str, Any]) -> None:
        self._send("epoch", row)

    def measuring(self, done: int, total: int) -> None:
        self._send("measuring", done, total)

    def stop(self) -> bool:
        return self._stop()


def relay(watch: Watch, stop: Callable[[], bool]) -> Relay:
    """Passes the events on to another watch, which is not asked whether to stop."""
    return Relay(lambda name, *what: getattr(watch, name)(*what), stop)


class _Worker:
    """A process with a run, and the pipe to it."""

    def __init__(self, config: Config, options: Options, threads: int, watch: Watch) -> None:
        self.config, self.watch = config, watch
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(config, options, threads, theirs))
        self.process.start()
        theirs.close()  # so that each end sees when the other is gone
        self.told = False

    def stop(self) -> None:
        """Ask it to save a checkpoint and to stop."""
        if not self.told:
            self.told = True
            with suppress(OSError):  # it has just ended, and has said how
                self.pipe.send("stop")


class _Pool:
    """So many processes at a time, until no run is waiting."""

    def __init__(self, waiting: Sequence[Config], options: Options, show: Show, jobs: int) -> None:
        self.waiting, self.options, self.show = list(waiting), options, show
        self.jobs = min(jobs, len(waiting))
        self.threads = max(1, _processors() // self.jobs)
        self.workers: list[_Worker] = []
        self.outcomes: list[Outcome] = []

    def work(self) -> list[Outcome]:
        """All of them, in the order of the configs."""
        order = list(self.waiting)
        full = False
        try:
            while self.waiting or self.workers:
                full = full or any(outcome.full for outcome in self.outcomes)
                if full or self.show.stop():
                    self._stop()
                while self.waiting and len(self.workers) < self.jobs:
                    config = self.waiting.pop(0)
                    self.workers.append(_Worker(config, self.options, self.threads, self.show.begin(config)))
                ready = wait([worker.pipe for worker in self.workers], timeout=0.2)
                for worker in [worker for worker in self.workers if worker.pipe in ready]:
                    self._hear(worker)
        finally:
            for worker in self.workers:  # we are interrupted: what is on the disk is whole at any time
                worker.process.kill()
                worker.process.join()
        return sorted(self.outcomes, key=lambda outcome: order.index(outcome.config))

    def _stop(self) -> None:
        self.outcomes += [_not_begun(config, self.options) for config in self.waiting]
        self.waiting = []
        for worker in self.workers:
            worker.stop()

    def _hear(self, worker: _Worker) -> None:
        try:
            name, *what = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            folder = recipes.folder(worker.config, self.options.root)
            message = f"its process has died ({how}), perhaps for want of memory"
            name, what = "end", [Outcome(worker.config, folder, FAILED, message)]
        if name != "end":
            getattr(worker.watch, name)(*what)
            return
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        self.outcomes.append(what[0])
        self.show.end(what[0])


def _processors() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(config: Config, options: Options, threads: int, pipe: Connection) -> None:
    """What a process does: a run, telling of it through the pipe. Anything that comes back means stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the first process says what it means
    torch.set_num_threads(threads)
    last = 0.0

    def send(name: str, *what: Any) -> None:
        nonlocal last
        if name in ("step", "measuring"):
            if time.monotonic() - last < _QUIET_SECONDS:
                return
            last = time.monotonic()
        with suppress(OSError):  # the first process is gone: then `poll` says stop, with a checkpoint
            pipe.send((name, *what))

    outcome = _one(config, options, Relay(send, pipe.poll))
    send("end", outcome)
