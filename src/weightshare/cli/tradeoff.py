"""``weightshare tradeoff``: accuracy against bits, from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weightshare.experiments.tradeoff import Listener


def tradeoff(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of these.")],
    store: Annotated[
        Path | None,
        typer.Option(help="The JSON file; left out, results/compression-<experiment>.json."),
    ] = None,
    heal_epochs: Annotated[
        int, typer.Option(min=1, help="Epochs of training with ties and zeros frozen.")
    ] = 5,
    heal_lr: Annotated[
        list[float] | None,
        typer.Option(
            help="A learning rate of healing; of several, each point takes the one with the smallest loss on "
            "the training set. Left out, 0.01 and 0.1."
        ),
    ] = None,
) -> None:
    """Measure accuracy against bits per weight: tied in training, or tied, pruned and rounded afterwards.

    Runs with a penalty are stored as they are trained and healed (by the run itself, if it has healed.pt). A
    run without is also tied by k-means to 1 to 6 bits, pruned to 50 to 99 % zeros, both healed too, and
    rounded to int8 and int4. A point is in the file as soon as it is made, and is not made twice.

    \b
        weightshare tradeoff runs/cifar10-*/cpu --store results/compression-cifar10.json
        weightshare figure tradeoff --runs results/compression-cifar10.json --out docs/images
    """
    from weightshare.experiments import points
    from weightshare.experiments.folder import find_runs
    from weightshare.experiments.tradeoff import Healing, measure_all

    found = {run.path.resolve(): run for path in runs for run in find_runs(path)}
    if not found:
        raise ValueError(f"there are no runs in {', '.join(map(str, runs))}; `weightshare train` makes some")
    healing = Healing(heal_epochs, tuple(heal_lr)) if heal_lr else Healing(heal_epochs)
    target = store or _default(list(found.values()))
    content = measure_all(list(found.values()), target, healing, _listener())
    typer.echo(points.sheet(content).markdown())
    typer.echo(f"stored in {target}", err=True)


def _default(runs: list[Any]) -> Path:
    experiments = sorted({str(run.config["recipe"]).partition("/")[0] for run in runs})
    return Path("results") / f"compression-{'-'.join(experiments)}.json"


def _listener() -> Listener:
    """A line for each point; on a terminal also where healing is."""
    from rich.console import Console

    from weightshare.experiments.config import Config
    from weightshare.experiments.folder import Run
    from weightshare.experiments.shrink import Way
    from weightshare.experiments.tradeoff import Listener

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    status = console.status("")

    class Shown(Listener):
        what = ""

        def left_out(self, run: Run, why: str) -> None:
            console.print(f"left out {run.path}: {why}")

        def begins(self, config: Config, way: Way, number: int, total: int) -> None:
            self.what = f"[{number}/{total}] {config.recipe}, seed {config.seed}: {way}"
            status.update(self.what)
            if console.is_terminal:
                status.start()

        def healing(self, lr: float, epoch: int, epochs: int) -> None:
            status.update(f"{self.what}: lr {lr:g}, epoch {epoch} of {epochs}")

        def done(self, point: dict[str, Any], seconds: float) -> None:
            status.stop()
            console.print(
                f"{self.what}: {point['test_accuracy']:.2%} with {point['bits']:.3g} bits per weight "
                f"({point['layer_bits']:.3g} in the regularised layers), {seconds:.0f} s"
            )

    return Shown()


def add_to(app: typer.Typer) -> None:
    """Give the app this command."""
    app.command()(tradeoff)
