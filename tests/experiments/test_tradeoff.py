"""Accuracy against bits: the points are what they say, are made once, and never from the test set."""

import copy
import dataclasses
import json

import matplotlib as mpl
import pytest
import torch
from typer.testing import CliRunner

import synthetic_runs
import weightshare as ws
from weightshare.cli.app import app
from weightshare.experiments import measure, models, points, recipes, shrink, tasks, tradeoff
from weightshare.experiments.config import Config
from weightshare.experiments.figures import tradeoff as picture
from weightshare.experiments.folder import Run
from weightshare.experiments.heal import heal_
from weightshare.experiments.shrink import AS_TRAINED, INTEGERS, KMEANS, PRUNED, Way
from weightshare.experiments.tradeoff import Healing, Listener, measure_all
from weightshare.metrics import summary

mpl.use("Agg")

CPU = torch.device("cpu")
QUICK = Healing(1, (0.01,))
FEW = [
    Way(AS_TRAINED), Way("int8"), Way(KMEANS, 3), Way(AS_TRAINED, None, True), Way(KMEANS, 3, True),
    Way(PRUNED, 0.9, True),
]  # fmt: skip


@pytest.fixture
def few(monkeypatch):
    """Of all ways some of each kind."""
    monkeypatch.setattr(tradeoff, "ways", lambda config: FEW if config.method == "none" else FEW[::3])


@pytest.fixture
def runs(tmp_path):
    """A run without ties, and one with."""
    made = [synthetic_runs.make(tmp_path / "runs", f"digits/{name}") for name in ("mlp", "mlp-r")]
    for run in made:
        model, config = random_network(run.config["recipe"])
        if config.method == "prox":
            ws.tie(model, shrink.targets(config), bits=3)
        torch.save(model.state_dict(), run.weights)
    return made


def task_of(run):
    return tasks.make(Config.from_dict(run.config), CPU)


def network(run, side=8):
    model = models.build(Config.from_dict(run.config), side)
    model.load_state_dict(torch.load(run.weights, weights_only=True))
    return model


def random_network(name="digits/mlp"):
    torch.manual_seed(1)
    config = recipes.recipe(name, "smoke")
    return models.build(config, 8), config


def undated(content):
    """Without what differs between two computers and two days."""
    found = copy.deepcopy(content)
    for entry in found["runs"]:
        del entry["circumstances"]
        for point in entry["points"]:
            del point["date"], point["commit"]
    return found


def killed_after(count):
    class Killer(Listener):
        left = count

        def done(self, point, seconds):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    return Killer()


def counted():
    class Counter(Listener):
        def __init__(self):
            self.made = []

        def begins(self, config, way, number, total):
            self.made.append((config.recipe, way))

    return Counter()


# The ways.


def test_a_plain_run_is_shrunk_in_all_ways_and_the_others_are_healed_alone():
    plain = shrink.ways(recipes.recipe("cifar10/mlp", "smoke"))
    assert len(plain) == len(set(plain))
    assert {w.level for w in plain if w.method == KMEANS} == {1, 2, 3, 4, 5, 6}
    assert {w.method for w in plain} == {AS_TRAINED, KMEANS, PRUNED, *INTEGERS}
    for way in plain:
        assert way.method in INTEGERS or dataclasses.replace(way, healed=not way.healed) in plain
    for name in ("cifar10/r", "cifar10/r-l1", "cifar10/l1", "cifar10/beta-lasso"):
        assert shrink.ways(recipes.recipe(name, "smoke")) == [Way(AS_TRAINED), Way(AS_TRAINED, None, True)]


@pytest.mark.parametrize("bits", [1, 4])
def test_kmeans_leaves_so_many_values_and_nothing_else_changes(bits):
    model, config = random_network()
    before = copy.deepcopy(model.state_dict())
    shrink.apply_(model, config, Way(KMEANS, bits))
    for name, w in model.state_dict().items():
        if name in ("layer1.weight", "layer2.weight"):
            assert summary(w).distinct == 2**bits
        else:
            assert torch.equal(w, before[name])


def test_pruning_leaves_the_largest():
    model, config = random_network()
    before = copy.deepcopy(model.state_dict())
    shrink.apply_(model, config, Way(PRUNED, 0.9))
    for name in ("layer1.weight", "layer2.weight"):
        w, old = model.state_dict()[name], before[name]
        assert (w == 0).sum() == int(0.9 * w.numel())
        assert torch.equal(w[w != 0], old[w != 0])
        assert old[w == 0].abs().max() <= w[w != 0].abs().min()


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_the_nearest_of_an_even_grid(bits):
    model, config = random_network()
    state = model.state_dict()
    stored = shrink.to_integers(state, config, bits)
    back = shrink.from_integers(stored)
    assert back.keys() == state.keys()
    for name, w in state.items():
        if name not in shrink.targets(config):
            assert torch.equal(back[name], w)
            continue
        assert stored[name].dtype == torch.int8
        assert stored[name].abs().max() == 2 ** (bits - 1) - 1
        step = w.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert ((back[name] - w).abs() <= 0.5001 * step).all()


def test_rows_of_zeros_stay_zero_as_integers():
    config = recipes.recipe("digits/mlp", "smoke", layers=(1,))
    rounded = shrink.to_integers({"layer1.weight": torch.zeros(2, 3)}, config, 8)
    assert torch.equal(shrink.from_integers(rounded)["layer1.weight"], torch.zeros(2, 3))


def test_what_is_stored_is_what_is_judged(tmp_path):
    model, config = random_network()
    found = shrink.store_(model, config, Way("int4"))
    assert summary(model.layer1.weight[0]).distinct <= 15  # read back from the file
    assert found["layer_bits"] < 5
    model, config = random_network()
    ws.tie(model, shrink.targets(config), bits=2)
    state = copy.deepcopy(model.state_dict())
    table = ws.save(model, tmp_path / "model.ws.safetensors")
    found = shrink.store_(model, config, Way(KMEANS, 2))
    assert found["bytes"] == (tmp_path / "model.ws.safetensors").stat().st_size
    assert found["bits"] == 8 * found["bytes"] / sum(p.numel() for p in model.parameters())
    names = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias")
    assert found["layer_bytes"] == sum(table[name]["after"] for name in names)
    assert found["layers"]["layer1.weight"]["distinct"] == 4
    assert all(torch.equal(w, state[name]) for name, w in model.state_dict().items())


# Healing.


@pytest.mark.parametrize("ties", [True, False])
def test_healing_keeps_zeros_and_ties_and_never_looks_at_held_out_data(runs, ties):
    config, task = Config.from_dict(runs[0].config), task_of(runs[0])
    blind = dataclasses.replace(task, held=None, held_labels=None)
    model = network(runs[0])
    shrink.apply_(model, config, Way(KMEANS, 2))
    shrink.apply_(model, config, Way(PRUNED, 0.3))
    before = copy.deepcopy(model)
    loss = heal_(model, config, blind, 1, 0.01, ties=ties)
    assert loss == measure.accuracy(model, task.training_set())[1]
    for name in shrink.targets(config):
        old, new = before.get_parameter(name), model.get_parameter(name)
        assert not torch.equal(old, new)
        assert ((new == 0) == (old == 0)).all()
        for value in old.unique():
            assert (new[old == value].unique().numel() == 1) == (ties or value == 0)
    again = copy.deepcopy(before)
    torch.manual_seed(99)  # not what the order of the images depends on
    assert heal_(again, config, task, 1, 0.01, ties=ties) == loss
    assert all(torch.equal(w, again.state_dict()[name]) for name, w in model.state_dict().items())


def test_of_several_learning_rates_the_training_set_chooses(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(tradeoff, "ways", lambda config: [Way(AS_TRAINED, None, True)])
    content = measure_all(runs[:1], tmp_path / "c.json", Healing(1, (1e-6, 0.05, 1e25)))
    heal = content["runs"][0]["points"][0]["heal"]
    assert heal["lr"] == 0.05
    assert heal["losses"][1] == min(heal["losses"][:2])
    assert heal["losses"][2] is None or heal["losses"][2] > heal["losses"][1]
    assert content["runs"][0]["points"][0]["loss"] == heal["losses"][1]


def test_where_every_learning_rate_diverges_there_is_an_error(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(tradeoff, "heal_", lambda *_, **__: float("nan"))
    with pytest.raises(ValueError, match=r"diverged at every learning rate of \[0.01\]"):
        measure_all(runs, tmp_path / "c.json", QUICK)


def test_a_run_that_has_healed_itself_is_taken_as_it_is(tmp_path, few):
    run = synthetic_runs.make(tmp_path / "runs", "digits/mlp-r", heal_epochs=7)
    state = torch.load(run.weights, weights_only=True)
    torch.save({**state, "layer1.bias": torch.ones_like(state["layer1.bias"])}, run.healed)
    content = measure_all([run], tmp_path / "c.json", QUICK)
    point = content["runs"][0]["points"][1]
    assert point["heal"] == {"epochs": 7, "lrs": [0.01], "by": "run", "lr": 0.01}
    assert point["layers"]["layer1.bias"]["distinct"] == 1


@pytest.mark.parametrize(
    ("epochs", "lrs", "wrong"),
    [(0, (0.1,), "at least 1, got 0"), (1, (), "positive"), (1, (0.1, 0.0), "positive")],
)
def test_healing_has_to_make_sense(epochs, lrs, wrong):
    with pytest.raises(ValueError, match=wrong):
        Healing(epochs, lrs)


# The file.


def test_killed_at_any_point_it_goes_on_to_the_same_file(runs, tmp_path, few):
    whole = measure_all(runs, tmp_path / "whole.json", QUICK)
    assert json.loads((tmp_path / "whole.json").read_text()) == whole
    made = [(entry["config"]["recipe"], p["method"], p["healed"]) for entry in whole["runs"]
            for p in entry["points"]]  # fmt: skip
    assert made == [("digits/mlp", w.method, w.healed) for w in FEW] + [
        ("digits/mlp-r", w.method, w.healed) for w in FEW[::3]
    ]
    store, listener = tmp_path / "killed.json", counted()
    for count in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            measure_all(runs, store, QUICK, killed_after(count))
    assert undated(measure_all(runs, store, QUICK, listener)) == undated(whole)
    assert len(listener.made) == len(made) - 4
    listener = counted()
    assert measure_all(runs[:1], store, QUICK, listener) == json.loads(store.read_text())
    assert listener.made == []


def test_points_are_made_again_where_they_are_of_something_else(runs, tmp_path, few):
    store = tmp_path / "c.json"
    measure_all(runs, store, QUICK)
    listener = counted()
    measure_all(runs, store, Healing(1, (0.02,)), listener)
    assert listener.made == [("digits/mlp", w) for w in FEW if w.healed] + [("digits/mlp-r", FEW[3])]
    state = torch.load(runs[1].weights, weights_only=True)
    state["layer1.bias"][0] += 1
    torch.save(state, runs[1].weights)
    listener = counted()
    measure_all(runs, store, Healing(1, (0.02,)), listener)
    assert listener.made == [("digits/mlp-r", way) for way in FEW[::3]]


def test_accuracy_is_that_of_the_run(runs, tmp_path, few):
    point = measure_all(runs, tmp_path / "c.json", QUICK)["runs"][0]["points"][0]
    task = task_of(runs[0])
    assert (point["test_accuracy"], point["test_loss"]) == measure.accuracy(network(runs[0]), task.held_out())


def test_runs_that_cannot_be_compared_are_left_out_or_refused(runs, tmp_path, few):
    make = synthetic_runs.make
    unfinished = make(tmp_path / "a", "digits/mlp", finished=False)
    tuning = make(tmp_path / "a", "digits/mlp", holdout=0.2)
    cnn = make(tmp_path / "a", "digits/cnn")
    listener = Listener()
    said = {}
    listener.left_out = lambda run, why: said.update({run.path: why})
    found = tradeoff.usable([unfinished, tuning, cnn, runs[0]], listener)
    assert [run.path for run, _ in found] == [runs[0].path]
    assert "not finished" in said[unfinished.path]
    assert "tuning" in said[tuning.path]
    assert "convolutional" in said[cnn.path]
    with pytest.raises(ValueError, match="none of the runs can be compared"):
        tradeoff.usable([cnn], listener)
    with pytest.raises(ValueError, match=r"differ in experiment \(digits, torus\)"):
        tradeoff.usable([*runs, make(tmp_path / "a", "torus/mlp")], listener)
    with pytest.raises(ValueError, match=r"differ in width \(2, 3\)"):
        tradeoff.usable([*runs, make(tmp_path / "a", "digits/mlp", width=3)], listener)
    copied = make(tmp_path / "again", "digits/mlp")
    with pytest.raises(ValueError, match="runs of the same config"):
        tradeoff.usable([*runs, copied], listener)


def test_other_files_are_not_overwritten(runs, tmp_path, few):
    store = tmp_path / "c.json"
    for text in ("[]", '{"runs": [{"config": {}}]}'):
        store.write_text(text)
        with pytest.raises(ValueError, match="no points of accuracy and bits"):
            measure_all(runs, store, QUICK)
        assert store.read_text() == text
    other = synthetic_runs.make(tmp_path / "a", "torus/mlp-r")
    store.unlink()
    measure_all([other], store, QUICK)
    before = store.read_text()
    with pytest.raises(ValueError, match="differ in experiment"):
        measure_all(runs, store, QUICK)
    assert store.read_text() == before


# What is made of it.


def point(method, level, healed, accuracy, bits, **heal):
    layers = {"layer1.weight": {"weights": 10, "distinct": 5, "zeros": 1, "entropy": 1.0, "bytes": 3}}
    return {
        "method": method, "level": level, "healed": healed, "test_accuracy": accuracy, "bits": bits,
        "layer_bits": bits / 2, "layers": layers, "heal": {"epochs": 5, "lrs": [0.1]} if healed else None,
    }  # fmt: skip


@pytest.fixture
def content():
    def entry(name, seed, made):
        return {"config": recipes.recipe(name, "smoke", seed=seed).to_dict(), "points": made, "weights": ""}

    plain = [
        [point(AS_TRAINED, None, False, 0.9 + s, 32.0), point(KMEANS, 4, False, 0.5 + s, 4.0),
         point(KMEANS, 2, False, 0.3 + s, 2.0), point(KMEANS, 2, True, 0.6 + s, 2.0)]
        for s in (0.0, 0.02)
    ]  # fmt: skip
    tied = [point(AS_TRAINED, None, False, 0.85, 1.0), point(AS_TRAINED, None, True, 0.88, 1.0)]
    runs = [entry("digits/mlp-r", 0, tied), *(entry("digits/mlp", seed, p) for seed, p in enumerate(plain))]
    return {"experiment": "digits", "runs": runs}


def test_table_has_means_over_seeds_and_says_what_is_missing(content):
    table = points.sheet(content)
    rows = {row[0]: row for row in table.cells()}
    assert list(rows) == ["MLP", "MLP, k-means to 4 bits", "MLP, k-means to 2 bits", "MLP + R"]
    assert rows["MLP"][1:3] == ["91.00 ± 1.41", "-"]
    assert rows["MLP, k-means to 2 bits"][1:5] == [
        "31.00 ± 1.41",
        "61.00 ± 1.41",
        "2.00 ± 0.00",
        "2.00 ± 0.00",
    ]
    assert rows["MLP + R"][1:3] == ["85.00", "88.00"]
    assert [row[-1] for row in rows.values()] == ["2", "2", "2", "1"]
    assert any("5 more epochs" in note for note in table.notes)
    assert not any("MLP + R:" in note for note in table.notes)
    for entry in content["runs"]:
        entry["config"]["lr"] = 0.25
    assert any("MLP + R: " in note and "lr=0.25" in note for note in points.sheet(content).notes)


def test_figure_shows_what_is_stored(content):
    axes = picture.figure(content).axes[0]
    lines = {(c.get_label(), c.lines[0].get_linestyle()): c.lines[0] for c in axes.containers}
    assert lines["k-means after training", "--"].get_xdata() == pytest.approx([2, 4])
    assert lines["k-means after training", "--"].get_ydata() == pytest.approx([31, 51])
    drawn = [tuple(c.lines[0].get_xydata()[0]) for c in axes.containers]
    assert (1.0, pytest.approx(88.0)) in drawn
    assert picture.figure(content).axes[1].containers[0].lines[0].get_xdata()[0] == 16.0
    with pytest.raises(ValueError, match="no points"):
        picture.figure({"experiment": "digits", "runs": []})


def test_from_the_command_line(runs, tmp_path, few, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = ["tradeoff", "runs", "--heal-epochs", "1", "--heal-lr", "0.01"]
    done = CliRunner().invoke(app, ask)
    assert done.exit_code == 0, done.output
    assert "| MLP + R |" in done.output
    file = tmp_path / "results" / "compression-digits.json"
    assert len(json.loads(file.read_text())["runs"]) == 2
    assert Run.open(runs[0].path).finished
    done = CliRunner().invoke(app, ["figure", "tradeoff", "--format", "png", "--out", "docs/images"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "docs" / "images" / "compression-digits.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_line_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for ask, wrong in (
        (["tradeoff", "empty"], "there are no runs in empty"),
        (["figure", "tradeoff"], "there is no results/compression-.*json"),
        (["figure", "tradeoff", "--runs", "empty"], "give a file that `weightshare tradeoff` wrote"),
    ):
        done = CliRunner().invoke(app, ask)
        assert done.exit_code != 0
        with pytest.raises(ValueError, match=wrong):
            raise done.exception
