"""Several runs: in order or side by side, with the same results; what fails does not keep the others."""

import dataclasses
import errno
import os

import pytest
import torch

from weightshare.experiments import many, recipes, train
from weightshare.experiments.many import Options, Show
from weightshare.experiments.recipes import recipe
from weightshare.experiments.watch import Watch


def tiny(name="torus/mlp", **settings):
    return recipe(name, "smoke", **{"epochs": 2, "batch": 256, "width": 1, **settings})


class Log(Show):
    """Remembers what it is told; stops all runs when it has been told ``last``."""

    def __init__(self, last=None):
        self.last, self.events, self.stopping = last, [], False

    def begin(self, config):
        log, name = self, (config.recipe, config.seed)

        class Told(Watch):
            def started(self, *at):
                log.tell("started", *name)

            def epoch(self, row):
                log.tell("epoch", *name, row["epoch"])

            def step(self, epoch, step):
                log.tell("step", *name, epoch, step)

        return Told()

    def tell(self, *what):
        self.events.append(what)
        self.stopping = self.stopping or what == self.last

    def end(self, outcome):
        self.tell("end", outcome.config.recipe, outcome.config.seed, outcome.status)

    def stop(self):
        return self.stopping

    def of(self, kind):
        return [what[1:] for what in self.events if what[0] == kind]


def options(root, **more):
    return Options(root, tensorboard=False, **more)


def test_runs_are_done_in_order_and_finished_ones_are_skipped(tmp_path):
    configs = [tiny(seed=seed) for seed in (2, 0, 1)]
    log = Log()
    outcomes = many.run_all(configs, options(tmp_path), show=log)
    assert [outcome.config.seed for outcome in outcomes] == [2, 0, 1]
    assert log.of("started") == [("torus/mlp", seed) for seed in (2, 0, 1)]
    again = Log()
    outcomes = many.run_all([*configs, tiny(seed=3)], options(tmp_path), show=again)
    assert [outcome.status for outcome in outcomes] == ["skipped"] * 3 + ["finished"]
    assert again.of("started") == [("torus/mlp", 3)]
    outcomes = many.run_all(configs[:1], options(tmp_path, resume=False))
    assert [outcome.status for outcome in outcomes] == ["finished"]


def test_side_by_side_is_the_same_and_a_diverged_run_does_not_keep_the_others(tmp_path):
    configs = [tiny(lr=1e30, epochs=9), tiny("torus/mlp-r"), tiny(seed=1)]
    log = Log()
    outcomes = many.run_all(configs, options(tmp_path / "jobs"), jobs=2, show=log)
    assert [outcome.status for outcome in outcomes] == ["failed", "finished", "finished"]
    assert "training has diverged" in outcomes[0].message
    assert sorted(log.of("end")) == sorted(
        (outcome.config.recipe, outcome.config.seed, outcome.status) for outcome in outcomes
    )
    assert ("torus/mlp-r", 0, 2) in log.of("epoch")
    in_turn = many.run_all(configs, options(tmp_path / "turn"))
    assert [outcome.status for outcome in in_turn] == ["failed", "finished", "finished"]
    for mine, other in zip(outcomes[1:], in_turn[1:]):
        a, b = (torch.load(outcome.folder / "weights.pt") for outcome in (mine, other))
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_stop_saves_what_is_going_on_and_begins_nothing_more(tmp_path):
    configs = [tiny(seed=seed) for seed in (0, 1)]
    log = Log(last=("step", "torus/mlp", 0, 1, 2))
    outcomes = many.run_all(configs, options(tmp_path), show=log)
    assert [outcome.status for outcome in outcomes] == ["stopped", "stopped"]
    assert (outcomes[0].folder / "checkpoint.pt").is_file()
    assert not outcomes[1].folder.exists()
    log = Log()
    assert [o.status for o in many.run_all(configs, options(tmp_path), show=log)] == ["finished"] * 2
    assert log.of("step")[0] == ("torus/mlp", 0, 1, 3)


def test_processes_stop_with_checkpoints(tmp_path):
    configs = [tiny(seed=seed, epochs=500) for seed in (0, 1, 2)]
    log = Log(last=("epoch", "torus/mlp", 0, 1))
    outcomes = many.run_all(configs, options(tmp_path), jobs=2, show=log)
    assert [outcome.status for outcome in outcomes] == ["stopped"] * 3
    assert (outcomes[0].folder / "checkpoint.pt").is_file()
    assert not outcomes[2].folder.exists()


def test_a_full_disk_stops_all(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(train.checkpoint, "save_tensors", full)
    outcomes = many.run_all([tiny(seed=seed) for seed in (0, 1)], options(tmp_path))
    assert [outcome.status for outcome in outcomes] == ["failed", "stopped"]
    assert outcomes[0].full
    assert not outcomes[1].folder.exists()


def test_a_fault_in_one_run_is_told_with_its_traceback(tmp_path, monkeypatch):
    really = train.models.build

    def broken(config, side):
        if config.seed == 0:
            raise RuntimeError("out of memory, say")
        return really(config, side)

    monkeypatch.setattr(train.models, "build", broken)
    outcomes = many.run_all([tiny(seed=seed) for seed in (0, 1)], options(tmp_path))
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert "Traceback" in outcomes[0].message
    assert "out of memory, say" in outcomes[0].message


def test_what_can_be_known_is_told_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHTSHARE_DATA", str(tmp_path / "empty"))
    good = tiny()
    for bad, said in [
        (recipe("torus/mlp", "cpu"), "weightshare data fetch mnist"),
        (tiny(device="abacus"), "device 'abacus' cannot be used here"),
        (good, "asked for twice"),
    ]:
        with pytest.raises(ValueError, match=said):
            many.run_all([good, bad], options(tmp_path / "runs"))
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        many.run_all([good], options(tmp_path / "runs"), jobs=0)
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_other_settings_is_told_before_anything_is_run(tmp_path):
    done = many.run_all([tiny(seed=1)], options(tmp_path))[0]
    text = (done.folder / "config.json").read_text()
    (done.folder / "config.json").write_text(text.replace('"lr": 0.1', '"lr": 0.2'))
    with pytest.raises(ValueError, match="holds a run with other settings: lr=0.2"):
        many.run_all([tiny(), tiny(seed=1)], options(tmp_path))
    assert not recipes.folder(tiny(), tmp_path).exists()


def test_outcomes_and_options_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().resume = False
