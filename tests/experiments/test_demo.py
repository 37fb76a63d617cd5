"""``weightshare demo``: from nothing to the report, stopped and gone on with."""

import io
import os
import re
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from weightshare.cli.app import app
from weightshare.cli.live import LiveTable
from weightshare.cli.progress import Interrupts
from weightshare.experiments import demo, recipes
from weightshare.experiments.folder import Run
from weightshare.experiments.many import FINISHED, SKIPPED, Outcome

NAMES = ("CNN", "MLP", "MLP + l1", "MLP + R")


def run(*arguments):
    return CliRunner().invoke(app, ["demo", "--preset", "smoke", "--jobs", "1", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What the demo says, and its folder."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    result = run("--out", folder)
    assert result.exit_code == 0, result.output
    return result.output, folder


def test_tells_what_it_does_in_plain_lines(made):
    output, folder = made
    assert "\x1b" not in output
    assert "Shared value" in output
    for name in NAMES:
        pattern = rf"{re.escape(name)}: epoch 5 of 5, test accuracy [\d.]+ %, [\d,]+ distinct values of "
        assert re.search(pattern, output), name
        assert f"{name}: done\n" in output
    for words in ("Test acc. %", "Distinct", "Tied %", "kB", str(folder / "report.html")):
        assert words in output


def test_leaves_a_report_a_picture_and_runs(made):
    _, folder = made
    page = (folder / "report.html").read_text()
    assert all(f">{name}<" in page for name in NAMES)
    assert demo.TITLE in page
    assert (folder / "particles.png").read_bytes()[1:4] == b"PNG"
    done = demo.runs(demo.configs("smoke"), folder / "runs")
    assert [run.config["recipe"] for run in done] == list(demo.RECIPES)
    assert all(run.finished for run in done)


def test_the_table_has_the_numbers_of_the_runs(made):
    _, folder = made
    done = demo.runs(demo.configs("smoke"), folder / "runs")
    sheet = demo.results(done)
    for row, run in zip(sheet.cells(), done):
        cells = dict(zip(sheet.columns, row))
        metrics = run.summary()["metrics"]
        assert cells["Test acc. %"] == f"{100 * metrics['test_accuracy']:.2f}"
        assert cells["Distinct"] == f"{sum(one['distinct'] for one in metrics['layers'].values()):,}"
    assert [row[0] for row in sheet.cells()] == list(NAMES)
    assert all(row for row in sheet.cells())


def test_a_second_call_trains_nothing(made, monkeypatch):
    _, folder = made
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.pt")}
    result = run("--out", folder)
    assert result.exit_code == 0
    assert "epoch" not in result.output.replace("Epoch", "")
    assert result.output.count(": done before\n") == 4
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("*.pt")}
    monkeypatch.setattr(demo, "RECIPES", ("digits/mlp",))
    fresh = run("--out", folder, "--fresh")
    assert fresh.exit_code == 0
    assert ": done before" not in fresh.output


def test_other_settings_than_before(tmp_path):
    config = recipes.recipe("digits/mlp", "smoke", epochs=3)
    Run.create(recipes.folder(recipes.recipe("digits/mlp", "smoke"), tmp_path / "runs"), config.to_dict(), {})
    result = run("--out", tmp_path)
    assert isinstance(result.exception, ValueError)
    assert "demo --fresh" in str(result.exception)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert "is a file" in str(run("--out", tmp_path / "file").exception)


def test_several_seeds_give_deviations(made, monkeypatch):
    _, folder = made
    monkeypatch.setattr(demo, "RECIPES", ("digits/mlp-r",))
    result = run("--out", folder, "--seeds", "0,1")
    assert result.exit_code == 0
    assert "MLP + R, seed 1: done" in result.output
    assert "±" in result.output


def test_interrupted_and_gone_on_with(tmp_path):
    command = [sys.executable, "-m", "weightshare.cli", "demo", "--preset", "smoke", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    for line in process.stdout:
        if "epoch 1 of 5" in line:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
            break
    rest = process.stdout.read()
    assert process.wait(60) == 130, rest
    assert "the same command" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "report.html").exists()
    again = run("--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "report.html").exists()


def test_the_live_table(made):
    _, folder = made
    wanted = demo.configs("smoke")
    console = Console(force_terminal=True, width=100, file=io.StringIO())
    with Interrupts() as interrupts, LiveTable(wanted, interrupts, console) as live:
        config = wanted[0]
        assert config.recipe == "digits/mlp-r"
        watch = live.begin(config)
        watch.started(5, 1, 10)
        layer = {"weights": 900, "distinct": 321, "zeros": 12, "entropy": 1.0}
        watch.epoch({"epoch": 2, "test_accuracy": 0.625, "layers": {"a": layer, "b": layer}})
        row = seen(live)
        assert all(words in row for words in ("MLP + R", "2/5", "62.5 %", "642", "24", "training"))
        live.end(Outcome(config, folder, FINISHED))
        assert "done" in seen(live)
        before = recipes.folder(wanted[1], folder / "runs")
        live.end(Outcome(wanted[1], before, SKIPPED))
        assert "5/5" in seen(live, "MLP + l1")
        assert not live.stop()


def seen(live, name="MLP + R"):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(live.table())
    (row,) = [line for line in capture.get().splitlines() if line.strip().startswith(name)]
    return row
