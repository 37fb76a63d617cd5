"""``weightshare recipes``: what can be trained, and with which settings."""

from __future__ import annotations

from typing import Annotated

import typer


def recipes(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE...]", help="These only; globs too.", show_default=False),
    ] = None,
    preset: Annotated[str, typer.Option(help="paper, cpu or smoke.")] = "cpu",
    show: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Every setting of one recipe, as TOML.")
    ] = None,
) -> None:
    """List the recipes, which are the rows of the paper's tables.

    The presets are paper (the paper's size), cpu (minutes on one thread of a laptop) and smoke (seconds).

    \b
        weightshare recipes
        weightshare recipes 'cifar10/*' --preset paper
        weightshare recipes --show torus/mlp-r --preset paper > mine.toml
        weightshare train --config mine.toml
    """
    from weightshare import checks
    from weightshare.experiments.recipes import PRESETS, RECIPES, expand, presets, recipe
    from weightshare.experiments.sheet import Sheet

    if show is not None:
        if patterns:
            raise ValueError(f"--show {show} is about one recipe; leave out {' '.join(patterns)}")
        typer.echo(recipe(show, preset).to_toml(), nl=False)
        return
    checks.choice("preset", preset, PRESETS)
    names = expand(patterns) if patterns else list(RECIPES)
    rows = []
    for name in names:
        if preset in presets(name):
            config = recipe(name, preset)
            strengths = [
                f"{value:g}" if value and config.method != "none" else None
                for value in (config.alpha, config.beta, config.rho)
            ]
            size = [config.dataset, config.model, str(config.width), str(config.epochs)]
            rows.append([name, *size, config.method, *strengths])
    columns = ["Recipe", "Dataset", "Model", "Width", "Epochs", "Method", "alpha", "beta", "rho"]
    if rows:
        typer.echo(Sheet(f"Recipes, preset {preset}", columns, rows).markdown())
    for name in names:
        if preset not in presets(name):
            typer.echo(f"{name} has no preset {preset}, but {', '.join(presets(name))}", err=True)


def add_to(app: typer.Typer) -> None:
    """Give the app this command."""
    app.command()(recipes)
