"""All commands, from one module each. These import what they need when they run, so that help is quick."""

from __future__ import annotations

import typer

import weightshare
from weightshare.cli import compress, data, demo, recipes, results, sweep, tradeoff, train

app = typer.Typer(
    help="Train neural networks whose weights become exactly tied, and make use of the ties.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weightshare {weightshare.__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """What stands before any command."""


demo.add_to(app)
compress.add_to(app)
results.add_to(app)
tradeoff.add_to(app)
train.add_to(app)
recipes.add_to(app)
data.add_to(app)
sweep.add_to(app)
