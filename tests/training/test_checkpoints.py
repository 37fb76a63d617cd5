"""State is plain numbers, and a killed run continues to the same bits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.resume import STEPS, run
from weightshare.training import Rule, WeightSharing


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_a_killed_run_continues_bitwise(tmp_path):
    whole = run(tmp_path / "whole.pt")
    script = Path(__file__).with_name("resume.py")
    command = [sys.executable, str(script), str(tmp_path / "killed.pt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= 23:
                process.kill()  # SIGKILL, at whatever it is doing by then
                break
    saved = torch.load(tmp_path / "killed.pt")
    assert 23 <= saved["sharing"]["steps"] < STEPS
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
    for bad, message in (
        ({}, "must come from"),
        (opt.state_dict(), "must come from"),
        ({"steps": 3, "controllers": {}}, "attach with the rules of the run that was saved"),
    ):
        with pytest.raises(ValueError, match=message):
            sharing.load_state_dict(bad)
    assert sharing.steps == 0
