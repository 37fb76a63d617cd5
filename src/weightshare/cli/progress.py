"""How runs are shown while they go on: bars on a terminal, lines elsewhere; and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import typer

from weightshare.experiments.config import Config
from weightshare.experiments.folder import Run
from weightshare.experiments.many import FAILED, FINISHED, SKIPPED, STOPPED, Outcome, Show
from weightshare.experiments.recipes import changes
from weightshare.experiments.watch import Watch

if TYPE_CHECKING:
    from rich.progress import Progress


class Interrupts(AbstractContextManager["Interrupts"]):
    """Ctrl-C (or a polite kill) once: ``stopping`` is set. Twice: KeyboardInterrupt, as ever."""

    def __init__(self) -> None:
        self.stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        # Not through Python's streams: the signal may have come while one of them was written to.
        os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again stops at once\n")


class Lines(Show):
    """A line for each epoch, for logs."""

    def __init__(self, interrupts: Interrupts, say: Callable[[str], None]) -> None:
        self.interrupts, self.say = interrupts, say

    def begin(self, config: Config) -> Watch:
        return _LineWatch(label(config), self.say)

    def end(self, outcome: Outcome) -> None:
        typer.echo(ending(outcome))

    def stop(self) -> bool:
        return self.interrupts.stopping


class _LineWatch(Watch):
    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name, self.say = name, say

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        self.epochs, self.first, self.start = epochs, epoch, time.monotonic()
        if epoch > 1:
            self.say(f"{self.name}: goes on with epoch {min(epoch, epochs)} of {epochs}")

    def epoch(self, row: dict[str, Any]) -> None:
        done = row["epoch"] - self.first + 1
        left = (self.epochs - row["epoch"]) * (time.monotonic() - self.start) / done
        ahead = f", {duration(left)} left" if row["epoch"] < self.epochs else ""
        self.say(f"{self.name}: epoch {row['epoch']} of {self.epochs}, {scores(row)}{ahead}")

    def measuring(self, done: int, total: int) -> None:
        if done == 1:
            self.say(f"{self.name}: predictions for {total} translations")


class Bars(Show, AbstractContextManager["Bars"]):
    """A bar for each run that goes on, and one for all of them."""

    def __init__(self, interrupts: Interrupts, runs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.interrupts, self.stack = interrupts, ExitStack()
        self.progress: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # else what goes to a file would come to the terminal
        )
        self.all = self.progress.add_task("all runs", total=runs, state="", visible=runs > 1)
        self.tasks: dict[Config, Any] = {}

    def __enter__(self) -> Bars:
        self.stack.enter_context(self.progress)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def begin(self, config: Config) -> Watch:
        task = self.progress.add_task(label(config), total=None, state="loading")
        self.tasks[config] = task
        return _BarWatch(self.progress, task)

    def end(self, outcome: Outcome) -> None:
        if outcome.config in self.tasks:
            self.progress.remove_task(self.tasks.pop(outcome.config))
        self.progress.advance(self.all)
        if sys.stdout.isatty():  # above the bars, which only their console knows
            self.progress.console.print(ending(outcome), markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(ending(outcome))

    def stop(self) -> bool:
        return self.interrupts.stopping


class _BarWatch(Watch):
    def __init__(self, progress: Progress, task: Any) -> None:
        self.progress, self.task, self.scores = progress, task, ""

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        # Not `update`: what was done before must not count as speed.
        self.progress.reset(
            self.task, total=epochs * steps, completed=(epoch - 1) * steps, state=f"epoch {epoch}/{epochs}"
        )

    def step(self, epoch: int, step: int) -> None:
        state = f"epoch {epoch}/{self.epochs}{self.scores}"
        self.progress.update(self.task, completed=(epoch - 1) * self.steps + step, state=state)

    def epoch(self, row: dict[str, Any]) -> None:
        self.scores = f", {scores(row)}"

    def measuring(self, done: int, total: int) -> None:
        self.progress.update(self.task, state=f"translation {done}/{total}{self.scores}")


def label(config: Config) -> str:
    """What a run is called on the screen.

    >>> from weightshare.experiments.recipes import recipe
    >>> label(recipe("torus/mlp", "cpu", lr=0.05, seed=2))
    'torus/mlp, seed 2, lr=0.05'
    """
    changed = "".join(f", {key}={value}" for key, value in changes(config).items())
    return f"{config.recipe}, seed {config.seed}{changed}"


def scores(row: dict[str, Any]) -> str:
    """Loss and accuracy of an epoch, and how many weights are distinct, where that was looked at.

    >>> scores({"loss": 0.5, "test_accuracy": 0.91, "layers": {"w": {"weights": 200, "distinct": 3}}})
    'loss 0.5, test 91.00 %, 1.5 % distinct'
    """
    parts = [f"loss {row['loss']:.4g}"]
    parts += [f"{held} {row[f'{held}_accuracy']:.2%}".replace("%", " %") for held in ("test", "valid")
              if f"{held}_accuracy" in row]  # fmt: skip
    if "layers" in row:
        weights = sum(layer["weights"] for layer in row["layers"].values())
        distinct = sum(layer["distinct"] for layer in row["layers"].values())
        parts.append(f"{100 * distinct / weights:.3g} % distinct")
    return ", ".join(parts)


def ending(outcome: Outcome) -> str:
    """How a run ended, in a line."""
    name = label(outcome.config)
    if outcome.status == SKIPPED:
        return f"{name}: finished before, in {outcome.folder}; --no-resume makes it anew"
    if outcome.status == STOPPED:
        return f"{name}: {outcome.message}"
    if outcome.status == FAILED:
        return f"{name}: failed: {outcome.message}"
    assert outcome.status == FINISHED
    metrics = Run.open(outcome.folder).summary()["metrics"]
    held = "valid" if "valid_accuracy" in metrics else "test"
    parts = [f"{held} accuracy {100 * metrics[f'{held}_accuracy']:.2f} %"]
    if "asymmetry" in metrics:
        parts.append(f"asymmetry {100 * metrics['asymmetry']:.1f} %")
    parts += [f"sharing {100 * metrics['exact_sharing']:.2f} %", duration(metrics["seconds"])]
    return f"{name}: finished: {', '.join(parts)}; {outcome.folder}"


def duration(seconds: float) -> str:
    """In the two largest units.

    >>> duration(7.4), duration(192), duration(7501)
    ('7 s', '3 min 12 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
