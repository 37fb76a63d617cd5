"""``weightshare sweep``: hyper-parameters by Optuna, on a validation split."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from weightshare.cli.progress import Interrupts
    from weightshare.experiments.many import Show
    from weightshare.experiments.sweep import Sweep


def sweep(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="One recipe; see weightshare recipes.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUES]...", help="More of --over.", show_default=False),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A setting to look for: low..high (logarithmic where it spans a factor of 10), or choices "
            "with commas between them. Can be given several times.",
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="paper (full size), cpu (minutes), smoke (seconds).")] = "cpu",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting in all trials, as epochs=20."),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Until so many trials are over, all processes together.")
    ] = 20,
    seeds: Annotated[str, typer.Option(help="The seeds of each trial, which is judged by their mean.")] = "0",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Any Optuna storage, for several machines; left out, the SQLite file sweeps.db in --runs.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The study's name in the storage; left out, made of the settings.")
    ] = None,
    sampler_seed: Annotated[
        int, typer.Option(min=0, help="Of Optuna's sampler; give each process its own.")
    ] = 0,
    runs: Annotated[Path, typer.Option("--runs", help="The folder of all runs.")] = Path("runs"),
    store: Annotated[
        Path | None, typer.Option(help="Also write the trials into this JSON file, as in results/.")
    ] = None,
) -> None:
    """Look for good settings of a recipe, by Optuna.

    Trials train on a part of the training set and are judged on the rest of it (--set holdout=0.1667); the
    test set is not looked at. Stop with Ctrl-C: the same command goes on. The same command in several
    processes, or on several machines with one --storage, shares the work.

    \b
        weightshare sweep torus/mlp-r --over alpha=1e-5..1e-2
        weightshare sweep torus/mlp-r-l1 --over alpha=1e-5..1e-2 beta=1e-5,1e-4,1e-3 --trials 30
        weightshare sweep cifar10/r --over alpha=1e-4..1e-1 --set epochs=10 --store results/sweep-r.json

    Exit codes: 0 done, 1 failed, 2 no such option, 130 stopped.
    """
    from weightshare.cli.train import seeds_of
    from weightshare.experiments import recipes as known
    from weightshare.experiments import space

    try:
        config = known.recipe(recipe, preset).with_settings(settings or [])
        found = space.space([*(over or []), *(more or [])], config)
    except TypeError as error:
        raise ValueError(str(error)) from None
    from weightshare.experiments import many
    from weightshare.experiments import sweep as sweeps

    wanted = sweeps.Sweep(config, found, tuple(seeds_of(seeds)), runs, storage, name, sampler_seed)
    many.check([wanted.config], many.Options(runs))
    study = _go(wanted, trials)
    typer.echo(_table(study))
    if store is not None:
        sweeps.store(wanted, study, store)
        typer.echo(f"stored in {store}", err=True)
    ranked = sweeps.ranked(study)
    if ranked:
        best = " ".join(f"--set {setting}" for setting in sweeps.settings(ranked[0]))
        typer.echo(f"the best: weightshare train {recipe} --preset {preset} {best}")


def _go(wanted: Sweep, trials: int) -> optuna.Study:
    """With bars on a terminal, with lines elsewhere."""
    from rich.console import Console

    from weightshare.cli import progress
    from weightshare.experiments import sweep as sweeps
    from weightshare.experiments.watch import Stopped

    with ExitStack() as stack:
        interrupts: Interrupts = stack.enter_context(progress.Interrupts())
        if Console(stderr=True).is_terminal:
            show: Show = stack.enter_context(progress.Bars(interrupts, 1))
        else:
            show = progress.Lines(interrupts, lambda text: typer.echo(text, err=True))

        def told(trial: FrozenTrial) -> None:
            typer.echo(f"trial {trial.number}: {_result(trial)}, {' '.join(sweeps.settings(trial))}")

        try:
            return sweeps.sweep(
                wanted, trials, watch=show.begin, told=told, interrupted=lambda: interrupts.stopping
            )
        except Stopped:
            typer.echo("stopped; the same command goes on", err=True)
            raise typer.Exit(130) from None


def _result(trial: FrozenTrial) -> str:
    if trial.value is not None and trial.state.name == "COMPLETE":
        return f"{100 * trial.value:.2f} % of the validation set"
    return trial.state.name.lower()


def _table(study: optuna.Study) -> str:
    """The completed trials, the best first."""
    from weightshare.experiments.sheet import Sheet
    from weightshare.experiments.sweep import ranked

    trials = ranked(study)
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    rows = [
        [
            str(trial.number),
            f"{100 * (trial.value or 0.0):.2f}",
            *(_short(trial.params.get(key)) for key in keys),
        ]
        for trial in trials
    ]
    pruned = sum(trial.state.name == "PRUNED" for trial in study.trials)
    notes = [f"{pruned} more were stopped early, since they were behind."] if pruned else []
    return Sheet(study.study_name, ["Trial", "Valid. acc. %", *keys], rows, notes).markdown()


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def add_to(app: typer.Typer) -> None:
    """Give the app this command."""
    app.command()(sweep)
