"""``weightshare demo``: the prox at work, then four small networks, a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from weightshare.experiments.config import Config
    from weightshare.experiments.many import Options, Outcome
    from weightshare.experiments.sheet import Sheet

WIDTH = 120  # where there is no terminal that has one


def demo(
    out: Annotated[Path, typer.Option(help="The folder for everything that is made.")] = Path("demo"),
    preset: Annotated[str, typer.Option(help="cpu (about a minute) or smoke (seconds).")] = "cpu",
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Several, as 0,1,2, give means and deviations.")
    ] = "0",
    jobs: Annotated[int, typer.Option(min=1, help="So many runs at a time, each in its process.")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew what is there already.")] = False,
) -> None:
    """See it work: real digits, four networks, two minutes at most on two cores.

    Prints the prox of a handful of weights; trains a CNN, an MLP, an MLP with
    l1 and an MLP with R on scikit-learn's digits; ends with the paper's table
    and a page of curves, weights and filters. Needs no download. Stop with
    Ctrl-C: the same command goes on; finished runs are kept.

    \b
        weightshare demo
        weightshare demo --seeds 0,1,2 --out demo3

    Exit codes: 0 done, 1 something has failed, 2 no such option, 130 stopped.
    """
    from rich.console import Console

    from weightshare.cli.train import seeds_of
    from weightshare.experiments import demo as made
    from weightshare.experiments import many

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    wanted = made.configs(preset, seeds_of(seeds))
    options = many.Options(out / "runs", resume=not fresh, tensorboard=False)
    _check(wanted, options)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    _prox_at_work(console, out / "particles.png")
    console.print(f"{made.TITLE}. {made.ABOUT}\n")
    _tell(_train(console, wanted, options, jobs))
    done = made.runs(wanted, options.root)
    console.print()
    _print(console, made.results(done))
    made.report(done, out / "report.html")
    console.print(f"\nThe report, for a browser: {out / 'report.html'}", soft_wrap=True)


def _check(wanted: list[Config], options: Options) -> None:
    """That the folder can be gone on with; of another version of the recipes it cannot."""
    from weightshare.experiments import many

    try:
        many.check(wanted, options)
    except ValueError as error:
        raise ValueError(f"{error}. Here: weightshare demo --fresh, or another --out") from None


def _prox_at_work(console: Console, path: Path) -> None:
    from weightshare.experiments import demo as made

    w = made.weights()
    _print(console, made.clusters(w, alpha=0.5))
    _print(console, made.clusters(w, alpha=0.5, beta=0.1, rho=0.9))
    made.picture(w, 0.5, path)
    console.print(f"The weights as sticky particles: {path}\n", soft_wrap=True)


def _print(console: Console, sheet: Sheet) -> None:
    """A sheet as a table of the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=sheet.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    cells = sheet.cells()
    for place, name in enumerate(sheet.columns):  # heads may wrap, cells may not
        width = max(map(len, [*name.split(), *(row[place] for row in cells)]))
        table.add_column(name, justify="right" if place else "left", min_width=width, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)
    for note in sheet.notes:
        console.print(Text(note, style="dim"))


def _train(console: Console, wanted: list[Config], options: Options, jobs: int) -> list[Outcome]:
    """As a live table on a terminal, line by line elsewhere."""
    from weightshare.cli.live import Lines, LiveTable
    from weightshare.cli.progress import Interrupts
    from weightshare.experiments import many

    with Interrupts() as interrupts:
        if not console.is_terminal:
            return many.run_all(wanted, options, jobs=jobs, show=Lines(wanted, interrupts))
        with LiveTable(wanted, interrupts, console) as live:
            return many.run_all(wanted, options, jobs=jobs, show=live)


def _tell(outcomes: list[Outcome]) -> None:
    """What is left to do, and the exit code."""
    from weightshare.cli.progress import label
    from weightshare.experiments.many import FAILED, STOPPED

    for outcome in outcomes:
        if outcome.status == FAILED:
            typer.echo(f"{label(outcome.config)}: failed: {outcome.message}", err=True)
    if any(outcome.status == FAILED for outcome in outcomes):
        raise typer.Exit(1)
    if any(outcome.status == STOPPED for outcome in outcomes):
        typer.echo("stopped; the same command (without --fresh) goes on", err=True)
        raise typer.Exit(130)


def add_to(app: typer.Typer) -> None:
    """Give the app this command."""
    app.command()(demo)
