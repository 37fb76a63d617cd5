"""A run that was killed at any point and goes on is bit for bit the run that was not."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weightshare.experiments import recipes, train
from weightshare.experiments.folder import Run
from weightshare.experiments.watch import Stopped, Watch

TIME = ("seconds", "prox_seconds", "seconds_per_epoch", "prox_seconds_per_epoch")
SETTINGS = {"batch": 256, "epochs": 3, "heal_epochs": 2, "evaluate_every": 2, "width": 1, "alpha": 0.05}


def config(**settings):
    return recipes.recipe("torus/mlp-r-l1", "smoke", **{**SETTINGS, **settings})


def without(found, *keys):
    if not isinstance(found, dict):
        return found
    return {k: without(v, *keys) for k, v in found.items() if k not in keys}


def assert_same(run, other):
    """All that a run leaves, but for times and dates."""
    assert [without(row, *TIME) for row in run.metrics()] == [without(row, *TIME) for row in other.metrics()]
    assert without(run.summary()["metrics"], *TIME) == without(other.summary()["metrics"], *TIME)
    for name in ("initial", "weights", "healed"):
        mine, theirs = torch.load(getattr(run, name)), torch.load(getattr(other, name))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    assert not run.checkpoint.exists()
    assert not [file for file in run.path.iterdir() if file.name.endswith(".part")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train.run(config(), tmp_path_factory.mktemp("whole"), tensorboard=False)


def test_the_run_that_is_compared_with_does_something(whole):
    layer = whole.summary()["metrics"]["layers"]["layer1.weight"]
    assert layer["distinct"] < layer["weights"]
    assert whole.summary()["metrics"]["healed"]["epochs"] == 2
    assert [row["phase"] for row in whole.metrics()] == ["train"] * 3 + ["heal"] * 2
    after, healed = torch.load(whole.weights), torch.load(whole.healed)
    assert not torch.equal(after["layer1.weight"], healed["layer1.weight"])


@pytest.fixture(scope="module")
def killable():
    """A process that does runs, each in a process that can be killed."""
    command = [sys.executable, Path(__file__).with_name("killable.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    with process:
        yield process
        process.stdin.close()


def killed_after(killable, root, seconds, events):
    """Begin or go on, and kill it after so many events; whether it lived to its end."""
    finished, pid = False, 0
    killable.stdin.write(json.dumps([config().to_dict(), str(root), seconds]) + "\n")
    for text in killable.stdout:
        word, *rest = text.split()
        if word == "over":
            return finished
        if word == "pid":
            pid = int(rest[0])
            continue
        finished = word == "finished"
        if events == 0:
            os.kill(pid, signal.SIGKILL)  # nothing is tidied up
        elif not finished:
            killable.stdin.write("\n")
        events -= 1
    raise AssertionError("the process has died")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its processes")
@pytest.mark.parametrize(("seconds", "seed"), [(0.0, 0), (0.0, 1), (1e9, 2), (1e9, 3)])
def test_killed_and_resumed_is_bitwise_the_same(killable, whole, tmp_path, seconds, seed):
    # A checkpoint at every step; or at the ends of the phases alone, so that work is done again.
    chance = random.Random(seed)
    for _ in range(4):
        if killed_after(killable, tmp_path, seconds, chance.randrange(0 if seconds else 2, 25)):
            break
    else:
        assert killed_after(killable, tmp_path, seconds, -1)
    assert_same(Run.open(recipes.folder(config(), tmp_path)), whole)


class StopAt(Watch):
    def __init__(self, event):
        self.event, self.asked = event, 0

    def stop(self):
        self.asked += 1
        return self.asked > self.event


def stopped_at_every(tmp_path, stride, seconds=1e9):
    """Stop politely after so many steps, again and again."""
    for _ in range(100):
        try:
            return train.run(
                config(), tmp_path, tensorboard=False, watch=StopAt(stride), checkpoint_seconds=seconds
            )
        except Stopped:
            continue
    raise AssertionError("never finished")


@pytest.mark.parametrize("stride", [1, 4])
def test_stopped_in_training_and_in_healing_is_bitwise_the_same(whole, tmp_path, stride, monkeypatch):
    # Judging is done again whenever it was stopped: let it pass here.
    monkeypatch.setattr(train._Trainer, "_judge", judge_without_asking(train._Trainer._judge))
    assert_same(stopped_at_every(tmp_path, stride), whole)


def judge_without_asking(judge):
    def quietly(self, name):
        stop, self.watch.stop = self.watch.stop, lambda: False
        judge(self, name)
        self.watch.stop = stop

    return quietly


def test_a_stop_while_it_is_judged_keeps_the_training(whole, tmp_path):
    steps = 3 * (859 // 256)

    class Judged(Watch):
        def __init__(self):
            self.measured = self.steps = 0

        def step(self, epoch, step):
            self.steps += 1

        def measuring(self, done, total):
            self.measured = done

        def stop(self):
            return self.measured == 5

    watch = Judged()
    with pytest.raises(Stopped, match="judged"):
        train.run(config(), tmp_path, tensorboard=False, watch=watch)
    assert watch.steps == steps
    assert_same(train.run(config(), tmp_path, tensorboard=False), whole)


def test_no_resume_begins_anew(whole, tmp_path):
    with pytest.raises(Stopped):
        train.run(config(), tmp_path, tensorboard=False, watch=StopAt(4))
    assert_same(train.run(config(), tmp_path, tensorboard=False, resume=False), whole)


def test_a_torn_line_and_a_torn_part_are_cut(whole, tmp_path):
    with pytest.raises(Stopped):
        train.run(config(), tmp_path, tensorboard=False, watch=StopAt(7))
    folder = recipes.folder(config(), tmp_path)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 99}\n{"epo')
    (folder / ".weights.pt.1-ab.part").write_bytes(b"half")
    assert_same(train.run(config(), tmp_path, tensorboard=False), whole)


def test_a_spoilt_checkpoint_is_told(tmp_path):
    with pytest.raises(Stopped):
        train.run(config(), tmp_path, tensorboard=False, watch=StopAt(2))
    checkpoint = recipes.folder(config(), tmp_path) / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read.*--no-resume begins the run anew"):
        train.run(config(), tmp_path, tensorboard=False)
    torch.save({"version": 99}, checkpoint)
    with pytest.raises(ValueError, match="another version of weightshare"):
        train.run(config(), tmp_path, tensorboard=False)
