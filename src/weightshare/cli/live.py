"""A live table of runs on a terminal, a row for each; elsewhere the same as lines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from weightshare.cli.progress import Interrupts
from weightshare.experiments.config import Config
from weightshare.experiments.figures import style
from weightshare.experiments.folder import Run
from weightshare.experiments.many import FINISHED, SKIPPED, Outcome, Show
from weightshare.experiments.watch import Watch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass
class State(Watch):
    """Where a run is, as it tells."""

    name: str
    epochs: int = 0
    at: int = 0
    accuracy: float | None = None
    layers: dict[str, Any] = field(default_factory=dict)
    status: str = "waiting"

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        self.epochs, self.at, self.status = epochs, epoch - 1, "training"

    def epoch(self, row: dict[str, Any]) -> None:
        self.at = row["epoch"]
        self.accuracy = row.get("test_accuracy", self.accuracy)
        self.layers = row.get("layers", self.layers)

    def measuring(self, done: int, total: int) -> None:
        self.status = f"translation {done} of {total}"

    def finish(self, outcome: Outcome) -> None:
        """The run is over; of one that was finished before, look up how it went."""
        self.status = {FINISHED: "done", SKIPPED: "done before"}.get(outcome.status, outcome.status)
        if outcome.status == SKIPPED:
            rows = Run.open(outcome.folder).metrics()
            self.epochs = len(rows)
            for row in rows:
                self.epoch(row)

    def counts(self, key: str) -> int:
        """Distinct values, zeros or weights of the layers that are counted."""
        return sum(layer[key] for layer in self.layers.values())


def states(configs: Sequence[Config]) -> dict[Config, State]:
    """A state for each run, in an order for reading: the paper's rows, then seeds."""
    from weightshare.experiments.recipes import RECIPES

    several = len({config.seed for config in configs}) > 1
    ordered = sorted(configs, key=lambda config: (RECIPES.index(config.recipe), config.seed))
    names = {c: style.model(c.recipe)[0] + (f", seed {c.seed}" if several else "") for c in ordered}
    return {config: State(name) for config, name in names.items()}


class LiveTable(Show, AbstractContextManager["LiveTable"]):
    """Epoch, accuracy, distinct values and zeros of all runs, as they go on."""

    def __init__(self, configs: Sequence[Config], interrupts: Interrupts, console: Console) -> None:
        from rich.live import Live

        self.interrupts, self.states = interrupts, states(configs)
        self.live = Live(console=console, get_renderable=self.table, refresh_per_second=5)

    def __enter__(self) -> LiveTable:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def begin(self, config: Config) -> Watch:
        self.states[config].status = "loading"
        return self.states[config]

    def end(self, outcome: Outcome) -> None:
        self.states[outcome.config].finish(outcome)

    def stop(self) -> bool:
        return self.interrupts.stopping

    def table(self) -> Table:
        """As things are now."""
        from rich.box import SIMPLE_HEAD
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD)
        for place, name in enumerate(("Model", "", "Epoch", "Test acc.", "Distinct", "Zeros", "")):
            table.add_column(name, justify="right" if 2 <= place <= 5 else "left")
        for state in self.states.values():
            accuracy = "" if state.accuracy is None else f"{100 * state.accuracy:.1f} %"
            counts = [f"{state.counts(key):,}" if state.layers else "" for key in ("distinct", "zeros")]
            bar = ProgressBar(state.epochs or 1, state.at, width=16)
            table.add_row(
                state.name, bar, f"{state.at}/{state.epochs or '?'}", accuracy, *counts, state.status
            )
        return table


class Lines(Show):
    """A line for each time that a network was looked at, for logs."""

    def __init__(self, configs: Sequence[Config], interrupts: Interrupts) -> None:
        self.interrupts, self.states = interrupts, states(configs)

    def begin(self, config: Config) -> Watch:
        return _Told(self.states[config])

    def end(self, outcome: Outcome) -> None:
        state = self.states[outcome.config]
        state.finish(outcome)
        typer.echo(f"{state.name}: {state.status}")

    def stop(self) -> bool:
        return self.interrupts.stopping


class _Told(Watch):
    """Keeps the state up to date, and says so."""

    def __init__(self, state: State) -> None:
        self.state = state

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        self.state.started(epochs, epoch, steps)

    def epoch(self, row: dict[str, Any]) -> None:
        state = self.state
        state.epoch(row)
        if "layers" in row and state.accuracy is not None:
            distinct, weights, zeros = map(state.counts, ("distinct", "weights", "zeros"))
            typer.echo(
                f"{state.name}: epoch {state.at} of {state.epochs}, test accuracy "
                f"{100 * state.accuracy:.1f} %, {distinct:,} distinct values of {weights:,} weights, "
                f"{zeros:,} zeros"
            )
