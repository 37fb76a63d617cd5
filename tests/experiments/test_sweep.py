"""Sweeps look at a part of the training set only, stop and go on, and refuse what cannot be looked for."""

import json

import pytest

optuna = pytest.importorskip("optuna")

from typer.testing import CliRunner  # noqa: E402

from weightshare.cli.app import app  # noqa: E402
from weightshare.experiments import sweep as sweeps  # noqa: E402
from weightshare.experiments import tasks  # noqa: E402
from weightshare.experiments.folder import find_runs  # noqa: E402
from weightshare.experiments.recipes import recipe  # noqa: E402
from weightshare.experiments.space import Choice, Range, space  # noqa: E402
from weightshare.experiments.watch import Diverged, Stopped, Watch  # noqa: E402

CONFIG = recipe("digits/mlp-r", "smoke", epochs=2)


def make(tmp_path, over=("alpha=1e-4,1e-3",), **options):
    return sweeps.Sweep(CONFIG, space(list(over), CONFIG), root=tmp_path / "runs", **options)


def test_ranges_and_choices_have_the_types_of_their_settings():
    found = space(
        ["alpha=1e-5..1e-2", "rho=0..0.5", "epochs=2..4", "layers=1;1,2", "coupling=scaled"], CONFIG
    )
    assert found["alpha"] == Range(1e-5, 1e-2, log=True, whole=False)
    assert found["rho"] == Range(0.0, 0.5, log=False, whole=False)
    assert found["epochs"] == Range(2, 4, log=False, whole=True)
    assert found["layers"] == Choice(("1", "1,2"))
    for where in found["layers"].values:
        assert CONFIG.with_settings({"layers": where}).layers in ((1,), (1, 2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--over needs"),
        (["alhpa=1..2"], "did you mean 'alpha'"),
        (["alpha"], "key=low..high"),
        (["alpha=2..1"], "larger"),
        (["alpha=a..b"], "two numbers"),
        (["alpha=-1..1"], "alpha must be at least 0"),
        (["alpha=1,1"], "twice"),
        (["alpha=1,2", "alpha=3,4"], "twice"),
        (["method=l1..prox"], "two numbers"),
        (["coupling=scaled,other"], "coupling"),
        (["seed=1,2"], "not a setting to sweep over"),
        (["holdout=0.1,0.2"], "not a setting to sweep over"),
    ],
)
def test_what_cannot_be_looked_for_is_named(words, message):
    with pytest.raises((ValueError, TypeError), match=message):
        space(words, CONFIG)


def test_never_looks_at_the_test_set(tmp_path, monkeypatch):
    made = []
    original = tasks.make
    monkeypatch.setattr(tasks, "make", lambda *a, **k: made.append(original(*a, **k)) or made[-1])
    wanted = make(tmp_path)
    sweeps.sweep(wanted, 5)
    assert [task.held_name for task in made] == ["valid", "valid"]  # all combinations, and no more
    everything = len(original(CONFIG, made[0].device).train)
    assert all(len(task.train) + len(task.held) == everything for task in made)
    for run in find_runs(tmp_path / "runs"):
        assert run.config["holdout"] > 0
        assert not [key for key in run.summary()["metrics"] if key.startswith("test")]


def test_the_best_trial_comes_first_and_everything_is_stored(tmp_path):
    wanted = make(tmp_path, ("alpha=1e-4,1e-3", "lr=0.02,0.1"), seeds=(0, 1))
    told = []
    study = sweeps.sweep(wanted, 4, told=told.append)
    ranked = sweeps.ranked(study)
    values = [trial.value for trial in ranked]
    assert values == sorted(values, reverse=True)
    assert len(told) == len(ranked) == 4
    sweeps.store(wanted, study, tmp_path / "sweep.json")
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert stored["config"]["holdout"] > 0
    assert stored["space"] == {"alpha": "0.0001, 0.001", "lr": "0.02, 0.1"}
    assert {"date", "commit", "versions"} <= stored["circumstances"].keys()
    # The score is that of the runs, which are where it says.
    best = ranked[0].params
    scores = [
        run.summary()["metrics"]["valid_accuracy"]
        for run in find_runs(tmp_path / "runs")
        if all(run.config[key] == value for key, value in best.items())
    ]
    assert len(scores) == 2
    assert ranked[0].value == pytest.approx(sum(scores) / 2, abs=1e-12)


def test_goes_on_after_an_interruption_without_losing_a_trial(tmp_path):
    wanted, steps = make(tmp_path), []

    class Counting(Watch):
        def step(self, epoch, step):
            steps.append((epoch, step))

    with pytest.raises(Stopped):
        sweeps.sweep(wanted, 2, watch=lambda config: Counting(), interrupted=lambda: len(steps) >= 3)
    study = sweeps.sweep(wanted, 2, watch=lambda config: Counting())
    assert len(sweeps.ranked(study)) == 2
    together = len(steps)
    uninterrupted = sweeps.sweep(make(tmp_path / "other"), 2, watch=lambda config: Counting())
    assert len(steps) == 2 * together  # no step was taken twice
    mine, theirs = ({t.params["alpha"]: t.value for t in s.trials if t.value is not None}
                    for s in (study, uninterrupted))  # fmt: skip
    assert mine == theirs


def test_a_finished_sweep_trains_no_more(tmp_path):
    wanted = make(tmp_path)
    sweeps.sweep(wanted, 2)

    def never(config):
        raise AssertionError("trained again")

    study = sweeps.sweep(wanted, 2, watch=never)
    assert len(sweeps.ranked(study)) == 2


def test_a_run_that_diverges_scores_nothing(tmp_path, monkeypatch):
    def diverging(config, *_, **__):
        raise Diverged("the loss is nan")

    monkeypatch.setattr(sweeps.train, "run", diverging)
    study = sweeps.sweep(make(tmp_path), 2)
    assert [trial.value for trial in study.trials] == [0.0, 0.0]
    assert all("nan" in trial.user_attrs["diverged"] for trial in study.trials)


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = ["sweep", "digits/mlp-r", "--preset", "smoke", "--set", "epochs=1"]
    done = CliRunner().invoke(
        app, [*start, "--over", "alpha=1e-4,1e-3", "lr=0.1", "--store", "found.json", "--trials", "9"]
    )
    assert done.exit_code == 0, done.output
    assert "the best: weightshare train digits/mlp-r --preset smoke --set alpha=" in done.output
    assert len(json.loads((tmp_path / "found.json").read_text())["trials"]) == 2
    for wrong, message in ((["--over", "alhpa=1..2"], "alpha"), ([], "--over needs")):
        failed = CliRunner().invoke(app, [*start, *wrong])
        assert failed.exit_code == 1
        assert message in str(failed.exception)
