"""State is plain numbers, and a killed run continues to the same bits."""

import json
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from training.resume import run
from weightshare.training import Rule, WeightSharing


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_a_run_killed_again_and_again_continues_bitwise(tmp_path):
    whole = run(tmp_path / "whole.pt")
    command = [sys.executable, str(Path(__file__).with_name("resume.py")), str(tmp_path / "killed.pt")]
    for moment, delay in ((2, 0.0), (23, 0.001), (41, 0.002)):
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as process:
            for line in process.stdout:
                process.stdin.write("\n")  # it may take one step more
                if int(line) >= moment:
                    time.sleep(delay)
                    process.kill()  # SIGKILL, at whatever it is doing by then
                    break
        assert moment <= torch.load(tmp_path / "killed.pt")["sharing"]["steps"] <= moment + 1
    assert same(run(tmp_path / "killed.pt"), whole)
    assert whole["sharing"]["controllers"]["0.weight"]["moves"] > 0


def test_the_state_is_what_makes_the_difference(tmp_path):
    whole = run(tmp_path / "a.pt")
    half = run(tmp_path / "b.pt", steps=30)
    half["sharing"]["controllers"]["0.weight"]["shift"] = 0.0
    torch.save(half, tmp_path / "b.pt")
    assert not same(run(tmp_path / "b.pt")["model"], whole["model"])


def test_state_is_json(mlp, train):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, [Rule("0.weight", alpha=0.1, target_bits=3), Rule("2.*", alpha=0.1)])
    for steps in (0, 15):
        train(model, opt, steps=steps)
        state = sharing.state_dict()
        again = json.loads(json.dumps(state, allow_nan=False))
        sharing.load_state_dict(again)
        assert sharing.state_dict() == state


def test_states_that_do_not_fit_are_refused(mlp):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sharing = WeightSharing(model, opt, Rule("0.weight", alpha=0.1, target_bits=3))
    good = sharing.state_dict()["controllers"]["0.weight"]
    for bad, message in (
        ({}, "must come from"),
        (opt.state_dict(), "must come from"),
        ({"steps": 3, "controllers": 3}, "must come from"),
        ({"steps": 3, "controllers": {}}, "attach with the rules of the run that was saved"),
        ({"steps": 3, "controllers": {"0.weight": {}}}, "controller of '0.weight' needs the numbers shift"),
        ({"steps": 3, "controllers": {"0.weight": {**good, "shift": "x"}}}, "'shift' of the controller of"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            sharing.load_state_dict(bad)
    assert sharing.state_dict() == {"steps": 0, "controllers": {"0.weight": good}}
