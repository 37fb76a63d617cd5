"""``weightshare table``, ``figure`` and ``report``: what is made of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weightshare.experiments.collect import Record
    from weightshare.experiments.folder import Run


class TableName(str, Enum):
    """The tables that can be made."""

    torus = "torus"
    cifar10 = "cifar10"
    runtime = "runtime"
    complexity = "complexity"


class FigureName(str, Enum):
    """The figures that can be made."""

    ratio = "ratio"
    filters = "filters"
    filters_random = "filters-random"
    worst_case = "worst-case"
    torus_samples = "torus-samples"
    regularization = "regularization"
    tradeoff = "tradeoff"


class TableFormat(str, Enum):
    """How a table is written."""

    markdown = "markdown"
    csv = "csv"
    latex = "latex"


class FigureFormat(str, Enum):
    """How a figure is written."""

    png = "png"
    svg = "svg"
    both = "both"


RESULTS = Path("results")
RUNS = Path("runs")

Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--runs",
        help="A folder of runs, or a JSON file that --store wrote; can be given several times. "
        "Left out: results/<experiment>-*.json, or else the folder runs.",
    ),
]
Preset = Annotated[
    str | None, typer.Option(help="paper, cpu or smoke, where there are runs of several presets.")
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure it now, on this machine, and store it. Takes minutes.")
]
Quick = Annotated[bool, typer.Option("--quick", help="With --measure: a few thousand weights, in seconds.")]
Results = Annotated[Path, typer.Option("--results", help="The folder of stored results.")]


def table(
    name: Annotated[TableName, typer.Argument(help="Which table.")],
    runs: Sources = None,
    preset: Preset = None,
    share: Annotated[float, typer.Option(help="torus: share of the training set, in (0, 1].")] = 0.6,
    format: Annotated[TableFormat, typer.Option(help="How to write it.")] = TableFormat.markdown,
    out: Annotated[Path | None, typer.Option(help="A file to write to, instead of the terminal.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Also gather the summaries of the runs in this JSON file.")
    ] = None,
    measure: Measure = False,
    quick: Quick = False,
    results: Results = RESULTS,
) -> None:
    """Make a table of the paper, ours next to the published numbers.

    torus and cifar10 are made from finished runs, runtime and complexity from a measurement (--measure).

    \b
        weightshare table torus --runs runs --store results/torus-cpu.json
        weightshare table cifar10 --format latex --out cifar10.tex
        weightshare table runtime --measure
    """
    from weightshare.experiments import collect, tables

    if name in (TableName.runtime, TableName.complexity):
        if runs or store:
            raise ValueError(
                f"the table {name.value} is measured, not made of runs: leave out --runs and --store"
            )
        make = tables.runtime if name is TableName.runtime else tables.complexity
        sheet = make(_measurement("runtime", measure, quick, results))
    else:
        records = _records(name.value, runs, results)
        if store is not None:
            alike = [r for r in records if r.config["recipe"].startswith(f"{name.value}/")]
            mine = [r for r in alike if not r.config.get("holdout")]  # sweeps have files of their own
            collect.store(mine, store)
            typer.echo(f"stored {len(mine)} summaries in {store}", err=True)
        if name is TableName.torus:
            sheet = tables.torus(records, preset, share)
        else:
            sheet = tables.cifar10(records, preset)
    _write(sheet.render(format.value), out)


def figure(
    name: Annotated[FigureName, typer.Argument(help="Which figure.")],
    runs: Sources = None,
    preset: Preset = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="filters: runs of these recipes only, for example torus/mlp-r."),
    ] = None,
    dataset: Annotated[str, typer.Option(help="torus-samples: mnist, fashion-mnist or digits.")] = "mnist",
    format: Annotated[FigureFormat, typer.Option(help="How to write it.")] = FigureFormat.both,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("figures"),
    measure: Measure = False,
    quick: Quick = False,
    results: Results = RESULTS,
) -> None:
    """Draw a figure of the paper.

    ratio reads summaries; filters and filters-random need the folders of runs, with their weights;
    worst-case is a measurement (--measure); torus-samples needs the data; regularization needs nothing;
    tradeoff reads files that `weightshare tradeoff` wrote, and draws a picture for each, of its name.

    \b
        weightshare figure ratio --runs results/torus-cpu.json
        weightshare figure filters --runs runs --recipe torus/mlp-r --recipe torus/mlp
        weightshare figure worst-case --measure
    """
    from weightshare.experiments.figures import filters, ratio, regularization, samples, style, worst_case

    formats = style.FORMATS if format is FigureFormat.both else (format.value,)
    if name is FigureName.tradeoff:
        _tradeoffs(runs, results, out, formats)
        return
    if name is FigureName.ratio:
        drawn: Any = ratio.figure(_records("torus", runs, results), preset)
    elif name in (FigureName.filters, FigureName.filters_random):
        draw = filters.translations if name is FigureName.filters else filters.sample
        drawn = draw(_layers(runs, preset, recipe or []))
    elif name is FigureName.worst_case:
        drawn = worst_case.figure(_needed(_measurement("worst-case", measure, quick, results), results))
    elif name is FigureName.torus_samples:
        from weightshare.experiments.data import load

        drawn = samples.figure(load(dataset))
    else:
        drawn = regularization.figure()
    for path in style.save(drawn, out / name.value, formats):
        typer.echo(path)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders of these.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The headline.")] = "Training with tied weights",
) -> None:
    """Write one self-contained HTML page about any runs, side by side.

    Curves, clusters over time, weights before and after, learned filters, what the ties save.

    \b
        weightshare report runs/torus-mlp/cpu/seed0 runs/torus-mlp-r/cpu/seed0 --out report.html
    """
    from weightshare.experiments import html
    from weightshare.experiments.folder import find_runs

    found = {run.path.resolve(): run for path in runs for run in find_runs(path)}
    begun = [run for run in found.values() if run.metrics()]
    if not begun:
        raise ValueError(f"there is no run with an epoch behind it in {', '.join(map(str, runs))}")
    for run in found.values():
        if run not in begun:
            typer.echo(f"left out {run.path}: it has no epoch behind it yet", err=True)
    html.write(begun, out, title)
    typer.echo(out)


def _tradeoffs(sources: list[Path] | None, results: Path, out: Path, formats: Sequence[str]) -> None:
    """A picture for each file of points."""
    from weightshare.experiments.figures import style, tradeoff
    from weightshare.experiments.files import read_json
    from weightshare.experiments.tradeoff import check_content

    files = sources or sorted(results.glob("compression-*.json"))
    if not files:
        raise ValueError(f"there is no {results}/compression-*.json: `weightshare tradeoff` makes some")
    for file in files:
        if not file.is_file():
            raise ValueError(f"--runs {file}: for tradeoff, give a file that `weightshare tradeoff` wrote")
    drawn = {file.stem: tradeoff.figure(check_content(file, read_json(file))) for file in files}
    for stem, picture in drawn.items():
        for path in style.save(picture, out / stem, formats):
            typer.echo(path)


def _records(experiment: str, sources: list[Path] | None, results: Path) -> list[Record]:
    """The finished runs of where the user says, or of where they are by custom."""
    from weightshare.experiments import collect

    if sources is None:
        stored = sorted(results.glob(f"{experiment}-*.json"))
        if not stored and not RUNS.is_dir():
            raise ValueError(
                f"there is neither {results}/{experiment}-*.json nor a folder {RUNS}: name a folder of runs "
                f"with --runs, or make some: `weightshare train {experiment}/...`"
            )
        sources = stored or [RUNS]
    for source in sources:
        if not source.exists():
            raise ValueError(f"--runs {source}: there is no such file or folder")
    return collect.read(sources)


def _layers(sources: list[Path] | None, preset: str | None, recipes: list[str]) -> list[Any]:
    """The first layers of one run (the lowest seed, plain) of each recipe."""
    from weightshare.experiments import first_layer
    from weightshare.experiments.folder import find_runs
    from weightshare.experiments.recipes import expand

    wanted = set(expand(recipes)) if recipes else None
    chosen: dict[str, Run] = {}
    for source in sources or [RUNS]:
        for run in find_runs(source):
            config = run.config
            name = config["recipe"]
            if wanted is not None and name not in wanted:
                continue
            if not run.finished or (preset is not None and config["preset"] != preset):
                continue
            if name not in chosen or _rank(run) < _rank(chosen[name]):
                chosen[name] = run
    if not chosen:
        where = ", ".join(map(str, sources or [RUNS]))
        raise ValueError(f"there is no finished run{' of these recipes' * bool(recipes)} in {where}")
    return [first_layer.of(run) for run in chosen.values()]


def _rank(run: Run) -> tuple[Any, ...]:
    """Which of several runs of a recipe is looked at first."""
    from weightshare.experiments.config import Config
    from weightshare.experiments.recipes import changes

    config = Config.from_dict(run.config)
    return config.holdout > 0, len(changes(config)), config.seed


def _measurement(name: str, measure: bool, quick: bool, results: Path) -> dict[str, Any] | None:
    """The stored measurement, made now if the user says so."""
    from weightshare.experiments import runtime
    from weightshare.experiments.files import read_json, write_json

    file = results / f"{name}.json"
    if measure:
        found = runtime.measure(quick) if name == "runtime" else runtime.worst_case(quick)
        write_json(file, found)
        typer.echo(f"stored in {file}", err=True)
        return found
    if quick:
        raise ValueError("--quick is a way to --measure: give both")
    stored: dict[str, Any] | None = read_json(file) if file.is_file() else None
    return stored


def _needed(measured: dict[str, Any] | None, results: Path) -> dict[str, Any]:
    if measured is None:
        raise ValueError(
            f"there is no {results / 'worst-case.json'}: `weightshare figure worst-case --measure` makes it"
        )
    return measured


def _write(text: str, out: Path | None) -> None:
    from weightshare.experiments.files import write_bytes

    if out is None:
        typer.echo(text)
    else:
        write_bytes(out, f"{text}\n".encode())
        typer.echo(out)


def add_to(app: typer.Typer) -> None:
    """Give the app these commands."""
    for command in (table, figure, report):
        app.command()(command)
