"""``weightshare train``: runs of recipes, from the start or from where they were stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weightshare.experiments.config import Config
    from weightshare.experiments.many import Options, Outcome


def train(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE...", help="Names or globs, as 'torus/*'; see weightshare recipes."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper (full size), cpu (minutes), smoke (seconds).  [default: cpu]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; can be given several times."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="One run for each, as 0,1,2.  [default: 0]", metavar="SEEDS")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps or auto; like --set device=...")
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="Instead of recipes: a TOML file, the config.json or summary.json of a run, or a file of "
            "results/ with many runs."
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder of all runs.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option(help="Go on with what is there and skip what is finished, or begin anew.")
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, help="So many runs at a time, each in its process.")] = 1,
    tensorboard: Annotated[bool, typer.Option(help="Write event files for TensorBoard.")] = True,
) -> None:
    """Train recipes, one run for each of them and each seed.

    A run is a folder: config, metrics, checkpoint, weights and a summary. Stop with Ctrl-C, kill it if you
    must: the same command goes on from the last checkpoint, to the same bits as without the break.
    Finished runs are skipped.

    \b
        weightshare train torus/mlp-r --preset smoke
        weightshare train 'torus/*' --seeds 0,1,2 --jobs 2
        weightshare train torus/mlp-r --set alpha=1e-4 --set epochs=100
        weightshare train --config runs/torus-mlp-r/cpu/seed0/config.json --seeds 3

        weightshare train --config results/torus-cpu.json --jobs 2

    Exit codes: 0 all is finished, 1 something has failed, 2 no such option, 130 stopped.
    """
    from weightshare.experiments import many

    configs = _configs(recipes or [], preset, config or [], settings or [], seeds, device)
    options = many.Options(runs, resume, tensorboard)
    many.check(configs, options)
    outcomes = _run(configs, options, jobs)
    _tell(outcomes, resume)


def _configs(
    names: list[str],
    preset: str | None,
    files: list[Path],
    settings: list[str],
    seeds: str | None,
    device: str | None,
) -> list[Config]:
    from weightshare.experiments.config import Config
    from weightshare.experiments.recipes import RECIPES, expand, recipe

    if bool(names) == bool(files):
        raise ValueError(
            f"give recipes, as in `weightshare train {RECIPES[1]}`, or files with --config"
            + (", not both" if names else "; `weightshare recipes` lists the recipes")
        )
    if files and preset is not None:
        raise ValueError(f"--preset {preset} is for recipes; the files of --config say their own")
    if files:
        bases = [base for file in files for base in Config.from_file(file)]
    else:
        bases = [recipe(name, preset or "cpu") for name in expand(names)]
    if device is not None:
        settings = [*settings, f"device={device}"]
    numbers = None if seeds is None else seeds_of(seeds)
    try:
        changed = [base.with_settings(settings) for base in bases]
        found = [c.with_settings({"seed": seed}) for c in changed for seed in numbers or [c.seed]]
        return list(dict.fromkeys(found))  # the file of many runs has their seeds, too
    except TypeError as error:
        raise ValueError(str(error)) from None


def seeds_of(text: str) -> list[int]:
    """Whole numbers with commas between them, each once."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be whole numbers, as in 0,1,2, got {text!r}") from None
    return list(dict.fromkeys(seeds))


def _run(configs: list[Config], options: Options, jobs: int) -> list[Outcome]:
    """With bars on a terminal, with lines elsewhere."""
    from rich.console import Console

    from weightshare.cli import progress
    from weightshare.experiments import many

    with progress.Interrupts() as interrupts:
        if not Console(stderr=True).is_terminal:
            lines = progress.Lines(interrupts, lambda text: typer.echo(text, err=True))
            return many.run_all(configs, options, jobs=jobs, show=lines)
        with progress.Bars(interrupts, len(configs)) as bars:
            return many.run_all(configs, options, jobs=jobs, show=bars)


def _tell(outcomes: list[Outcome], resume: bool) -> None:
    """What is left to do, and the exit code."""
    from weightshare.experiments.many import FAILED, STOPPED

    stopped = [outcome for outcome in outcomes if outcome.status == STOPPED]
    failed = [outcome for outcome in outcomes if outcome.status == FAILED]
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} runs failed", err=True)
    if stopped:
        same = "the same command" if resume else "the same command, without --no-resume,"
        typer.echo(f"stopped, with {len(stopped)} of {len(outcomes)} runs left; {same} goes on", err=True)
    if failed or stopped:
        raise typer.Exit(1 if any(outcome.full for outcome in failed) or not stopped else 130)


def add_to(app: typer.Typer) -> None:
    """Give the app this command."""
    app.command()(train)
