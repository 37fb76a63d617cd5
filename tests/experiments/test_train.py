"""A run: what it leaves, what it refuses, and what it does when something goes wrong."""

import errno
import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from weightshare.experiments import checkpoint, files, recipes, train
from weightshare.experiments.folder import Run, find_runs
from weightshare.experiments.recipes import recipe
from weightshare.experiments.watch import Diverged, Stopped, Watch


def tiny(name="torus/mlp", **settings):
    return recipe(name, "smoke", **{"epochs": 2, "batch": 256, "width": 1, **settings})


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_runs_and_tells_what_the_tables_need(tmp_path, name):
    config = recipe(name, "smoke", epochs=1, batch=400, width=1, evaluate_every=1, train_share=0.3)
    done = train.run(config, tmp_path, tensorboard=False)
    summary = done.summary()
    assert summary["config"] == config.to_dict()
    assert {"date", "commit", "versions", "processor"} <= summary["circumstances"].keys()
    metrics = summary["metrics"]
    for key in ("test_accuracy", "train_accuracy", "sparsity", "sharing", "exact_sharing"):
        assert 0 <= metrics[key] <= 1, key
    assert ("asymmetry" in metrics) == (config.experiment != "cifar10")
    if config.model == "cnn" and config.experiment != "cifar10":
        assert metrics["asymmetry"] == 0.0
    assert metrics["epochs"] == 1
    assert metrics["healed"] is None
    weights = torch.load(done.weights)
    for layer, row in metrics["layers"].items():
        assert row["weights"] == weights[layer].numel()
        assert row["distinct"] == weights[layer].unique().numel()
    (row,) = done.metrics()
    assert row["layers"].keys() == metrics["layers"].keys()
    assert row["test_accuracy"] == metrics["test_accuracy"]
    assert json.loads((done.path / "config.json").read_text())["config"] == config.to_dict()


def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path):
    runs = [
        train.run(tiny("torus/mlp-r", seed=seed), tmp_path / name, tensorboard=False)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    a, b, c = (torch.load(run.weights)["layer1.weight"] for run in runs)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_run_leaves_the_callers_randomness_and_threads_alone(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_num_threads()
    train.run(tiny(threads=2), tmp_path, tensorboard=False)
    assert torch.equal(torch.rand(3), wanted)
    assert torch.get_num_threads() == before


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    done = train.run(tiny(), tmp_path, tensorboard=False)
    before = {file: file.stat().st_mtime_ns for file in done.path.iterdir() if file.name != ".lock"}

    class Never(Watch):
        def started(self, *_):
            raise AssertionError("it was begun again")

    again = train.run(tiny(), tmp_path, watch=Never())
    assert again.summary() == done.summary()
    assert {file: file.stat().st_mtime_ns for file in done.path.iterdir() if file.name != ".lock"} == before


def test_tensorboard_has_the_rows(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = train.run(tiny(), tmp_path)
    events = EventAccumulator(str(done.tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    found = [event.value for event in events.Scalars("test_accuracy")]
    assert found == pytest.approx([row["test_accuracy"] for row in done.metrics()])
    assert events.Scalars("final/test_accuracy")[0].value == pytest.approx(found[-1])


def test_a_holdout_is_judged_on_validation_and_never_looks_at_the_test_set(tmp_path):
    done = train.run(tiny(holdout=0.2), tmp_path, tensorboard=False)
    metrics = done.summary()["metrics"]
    assert "valid_accuracy" in metrics
    assert not [key for row in [metrics, *done.metrics()] for key in row if "test" in key]


def test_the_learning_rate_follows_the_schedule(tmp_path):
    cosine = train.run(tiny(epochs=4, lr=0.2), tmp_path, tensorboard=False)
    wanted = [0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)]
    assert [row["lr"] for row in cosine.metrics()] == pytest.approx(wanted)
    constant = train.run(tiny(schedule="constant"), tmp_path, tensorboard=False)
    assert {row["lr"] for row in constant.metrics()} == {0.1}


def test_healing_keeps_the_ties_of_the_trained_weights(tmp_path):
    config = tiny("torus/mlp-r-l1", alpha=0.05, heal_epochs=1)
    done = train.run(config, tmp_path, tensorboard=False)
    before, after = torch.load(done.weights), torch.load(done.healed)
    for name in ("layer1.weight", "layer2.weight"):
        values, ids = before[name].unique(return_inverse=True)
        assert values.numel() < before[name].numel()
        assert not torch.equal(before[name], after[name])
        for cluster in range(values.numel()):
            members = after[name][ids == cluster]
            assert bool((members == members[0]).all())
    assert done.summary()["metrics"]["healed"]["epochs"] == 1


def test_divergence_is_told_with_its_place(tmp_path):
    with pytest.raises(
        Diverged, match=r"the loss is (nan|inf) in epoch \d, step \d of torus/mlp: .*smaller lr"
    ):
        train.run(tiny(lr=1e30, epochs=9), tmp_path, tensorboard=False)


def test_bad_circumstances_are_told_before_training(tmp_path):
    with pytest.raises(ValueError, match="batch=5000 is more than the .* training images"):
        train.run(tiny(batch=5000), tmp_path, tensorboard=False)
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here.*--device cpu"):
        train.run(tiny(device="abacus"), tmp_path, tensorboard=False)


def test_a_folder_with_another_run_is_not_overwritten(tmp_path):
    done = train.run(tiny(), tmp_path, tensorboard=False)
    stored = json.loads((done.path / "config.json").read_text())
    stored["config"]["lr"] = 0.7
    (done.path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"holds a run with other settings: lr=0.7 \(now 0.1\).*--no-resume"):
        train.run(tiny(), tmp_path, tensorboard=False)
    assert train.run(tiny(), tmp_path, tensorboard=False, resume=False).config["lr"] == 0.1


def test_two_processes_do_not_do_the_same_run(tmp_path):
    folder = recipes.folder(tiny(), tmp_path)
    hold = "import sys; from pathlib import Path; from weightshare.experiments.checkpoint import alone\n"
    hold += f"with alone(Path({str(folder)!r})): print('held', flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="being trained by another process"):
            train.run(tiny(), tmp_path, tensorboard=False)
        holder.kill()
    train.run(tiny(), tmp_path, tensorboard=False)


@pytest.mark.parametrize("what", ["config.json", "initial.pt", "checkpoint.pt", "weights.pt", "summary.json"])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(tmp_path, monkeypatch, what):
    whole = train.run(tiny(), tmp_path / "whole", tensorboard=False)

    def full(path):
        @contextmanager
        def replacing(target):
            with path(target) as file:
                yield file
                if target.name == what:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return replacing

    with monkeypatch.context() as patched:
        patched.setattr(files, "replacing", full(files.replacing))
        with pytest.raises(files.DiskFull, match="no room left on the disk for .*run the same command again"):
            train.run(tiny(), tmp_path, tensorboard=False, checkpoint_seconds=0.0)
    folder = recipes.folder(tiny(), tmp_path)
    assert not (folder / what).exists()
    assert not list(folder.glob(".*.part"))
    done = train.run(tiny(), tmp_path, tensorboard=False)
    assert torch.equal(torch.load(done.weights)["layer1.weight"], torch.load(whole.weights)["layer1.weight"])


def test_pytorchs_own_error_for_a_full_disk_becomes_the_systems(tmp_path, monkeypatch):
    def fail(value, file):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0") from None

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        files.save_tensors(tmp_path / "a.pt", {})
    assert files.disk_full(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_comes_back_with_position_rows_and_randomness(tmp_path):
    model = torch.nn.Linear(2, 2)
    position = checkpoint.Position("heal", 3, 4, 0.5, 6, 7.0, 8.0)
    torch.manual_seed(3)
    checkpoint.save(tmp_path / "c.pt", position, {"model": model}, [{"loss": 0.1}], {"trained": {"a": 1}})
    drawn = torch.rand(2)
    state = checkpoint.load(tmp_path / "c.pt")
    assert state["position"] == position
    assert state["rows"] == [{"loss": 0.1}]
    assert state["results"] == {"trained": {"a": 1}}
    assert torch.equal(state["parts"]["model"]["weight"], model.weight)
    checkpoint.restore_randomness(state)
    assert torch.equal(torch.rand(2), drawn)


def test_runs_are_found_and_half_made_folders_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*weightshare train"):
        find_runs(tmp_path / "none")
    with pytest.raises(ValueError, match="no config.json in it"):
        Run.open(tmp_path)
    with pytest.raises(Stopped):
        train.run(tiny(), tmp_path, tensorboard=False, watch=stopping())
    (run,) = find_runs(tmp_path)
    assert not run.finished
    with pytest.raises(ValueError, match="is not finished"):
        run.summary()
    (run.path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="was it edited by hand"):
        find_runs(tmp_path)


def stopping():
    watch = Watch()
    watch.stop = lambda: True
    return watch


def test_files_refuse_what_json_has_not(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
