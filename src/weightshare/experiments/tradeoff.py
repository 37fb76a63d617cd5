"""Accuracy against bits: what is left of networks that are tied, pruned or rounded, in training or after it.

From the folders of finished runs into one JSON file, a point at a time:

    {"experiment": "cifar10",
     "runs": [{"config", "circumstances", "trained": circumstances of the run, "weights": a hash of them,
               "points": [{"method", "level", "healed", "heal", "test_accuracy", "bytes", "bits", ...}]}]}

Nothing is chosen by looking at the test set: of several learning rates of healing the one with the smallest
loss on the training set is taken, and all of these are in the file.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightshare.compress.codebook import patterns
from weightshare.experiments import measure, models, tasks
from weightshare.experiments.config import Config
from weightshare.experiments.files import circumstances, read_json, write_json
from weightshare.experiments.folder import Run
from weightshare.experiments.heal import heal_
from weightshare.experiments.shrink import AS_TRAINED, Way, apply_, store_, tied, ways
from weightshare.experiments.torch_settings import as_configured
from weightshare.experiments.train import device_of

Row = dict[str, Any]

SAME = ("dataset", "variant", "train_share", "preset", "width")
"""Settings that all runs of one file have in common."""


@dataclass(frozen=True)
class Healing:
    """For how many epochs training goes on, and the learning rates that are tried."""

    epochs: int = 5
    lrs: tuple[float, ...] = (0.01, 0.1)

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs of healing must be at least 1, got {self.epochs}")
        if not self.lrs or not all(0 < lr < math.inf for lr in self.lrs):
            raise ValueError(f"learning rates of healing must be positive numbers, got {list(self.lrs)}")


class Listener:
    """Does nothing at any of the events; those who want to see the progress override some of them."""

    def left_out(self, run: Run, why: str) -> None:
        """This run is not looked at."""

    def begins(self, config: Config, way: Way, number: int, total: int) -> None:
        """A point, of this number (from 1) among those that are left, is being made."""

    def healing(self, lr: float, epoch: int, epochs: int) -> None:
        """So many epochs of healing are done."""

    def done(self, point: Row, seconds: float) -> None:
        """The point is made, and in the file."""


def measure_all(
    runs: Sequence[Run], store: Path, healing: Healing | None = None, listener: Listener | None = None
) -> Row:
    """Make every point of these runs that is not in the file yet; write the file after each; return it all.

    Points are made again where the run's weights or the healing have changed. Runs that are in the file and
    are not given stay in it.
    """
    healing, listener = healing or Healing(), listener or Listener()
    chosen = usable(runs, listener)
    content = _read(store, [config for _, config in chosen])
    entries = [_entry(content, run, config) for run, config in chosen]
    work = [_Work(*one, entry, healing) for one, entry in zip(chosen, entries)]
    total, number = sum(len(one.left) for one in work), 0
    for one in work:
        for way, settings in one.left:
            number += 1
            listener.begins(one.config, way, number, total)
            start = time.perf_counter()
            point = one.point(way, settings, listener)
            one.keep(point)
            write_json(store, content)
            listener.done(point, time.perf_counter() - start)
        one.close()
    return content


def usable(runs: Sequence[Run], listener: Listener) -> list[tuple[Run, Config]]:
    """The runs that can be compared, with their configs: finished, judged on the test set, fully connected.

    ``ValueError`` if there are none, or if they differ in more than method and seed.
    """
    found = []
    for run in runs:
        config = Config.from_dict(run.config)
        why = _obstacle(run, config)
        if why is None:
            found.append((run, config))
        else:
            listener.left_out(run, why)
    if not found:
        raise ValueError("none of the runs can be compared; `weightshare train` makes runs")
    check_same([config.to_dict() for _, config in found])
    found.sort(key=lambda one: (one[1].recipe, one[1].seed))
    for (one, config), (other, again) in itertools.pairwise(found):
        if config == again:
            raise ValueError(f"{one.path} and {other.path} are runs of the same config; give one of them")
    return found


def _obstacle(run: Run, config: Config) -> str | None:
    if not run.finished:
        return "it is not finished"
    if config.holdout:
        return "it was for tuning, and has not seen the test set"
    return None if config.model == "mlp" else "its network is convolutional, and has other weights"


def check_same(configs: Sequence[Mapping[str, Any]]) -> None:
    """``ValueError`` unless the runs with these configs are of one experiment, data and size."""
    kinds = [{"experiment": str(c["recipe"]).partition("/")[0], **{k: c[k] for k in SAME}} for c in configs]
    for key in kinds[0]:
        values = sorted({str(kind[key]) for kind in kinds})
        if len(values) > 1:
            raise ValueError(f"runs differ in {key} ({', '.join(values)}): each kind needs a file of its own")


def check_content(file: Path, content: Any) -> Row:
    """``ValueError`` unless this can be what :func:`measure_all` has written."""
    runs = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(runs, list) or not all(
        isinstance(entry, dict) and {"config", "weights", "points"} <= entry.keys() for entry in runs
    ):
        raise ValueError(f"{file} holds no points of accuracy and bits; `weightshare tradeoff` makes some")
    found: Row = content
    return found


def _read(store: Path, configs: Sequence[Config]) -> Row:
    """What the file has; it must be of the same kind as the runs."""
    content: Row = {"experiment": configs[0].experiment, "runs": []}
    if store.is_file():
        content = check_content(store, read_json(store))
    check_same([*(entry["config"] for entry in content["runs"]), *(c.to_dict() for c in configs)])
    return content


def _entry(content: Row, run: Run, config: Config) -> Row:
    """The run's part of the content, without points if the weights are others than these were made of."""
    weights = _digest(_state(run.weights))
    known: list[Row] = [entry for entry in content["runs"] if entry["config"] == config.to_dict()]
    fresh = {"config": config.to_dict(), "circumstances": {}, "trained": {}, "weights": "", "points": []}
    entry = known[0] if known else fresh
    if not known:
        content["runs"].append(entry)
        content["runs"].sort(key=lambda one: (one["config"]["recipe"], one["config"]["seed"]))
    if entry["weights"] != weights:
        entry.update(trained=run.circumstances, weights=weights, points=[])
    return entry


class _Work:
    """What is to be done for a run. Its data are loaded when they are first needed."""

    def __init__(self, run: Run, config: Config, entry: Row, healing: Healing) -> None:
        self.run, self.config, self.entry = run, config, entry
        self.task: tasks.Task | None = None
        wanted = [(way, self._settings(way, healing)) for way in ways(config)]
        self.order = [(way.method, way.level, way.healed) for way, _ in wanted]
        there = [self._there(*one) for one in wanted]
        self.left = [one for one, point in zip(wanted, there) if point is None]
        entry["points"] = [point for point in there if point is not None]

    def _settings(self, way: Way, healing: Healing) -> Row | None:
        """How the point is healed: as the run did itself, if it did."""
        if not way.healed:
            return None
        if self._by_run(way):
            return {"epochs": self.config.heal_epochs, "lrs": [self.config.heal_lr], "by": "run"}
        return {"epochs": healing.epochs, "lrs": list(healing.lrs), "by": "tradeoff"}

    def _by_run(self, way: Way) -> bool:
        return way.method == AS_TRAINED and self.run.healed.is_file()

    def _there(self, way: Way, settings: Row | None) -> Row | None:
        """The point if it is in the file already."""
        points: list[Row] = self.entry["points"]
        for point in points:
            same = (point["method"], point["level"], point["healed"]) == (way.method, way.level, way.healed)
            if same and (settings is None or settings.items() <= point["heal"].items()):
                return point
        return None

    def keep(self, point: Row) -> None:
        """Put the point where it belongs."""
        points = self.entry["points"]
        points.append(point)
        points.sort(key=lambda p: self.order.index((p["method"], p["level"], p["healed"])))
        self.entry["circumstances"] = circumstances()

    def close(self) -> None:
        """Forget the data."""
        self.task = None

    def point(self, way: Way, settings: Row | None, listener: Listener) -> Row:
        """Make it: change the network, heal it, store it, read it back, judge it."""
        with as_configured(self.config):
            if self.task is None:
                self.task = tasks.make(self.config, device_of(self.config))
            model, heal = self._network(way, settings, listener, self.task)
            sizes = store_(model, self.config, way)
            held, held_loss = measure.accuracy(model, self.task.held_out())
            trained, loss = measure.accuracy(model, self.task.training_set())
        made = circumstances()
        return {
            "method": way.method,
            "level": way.level,
            "healed": way.healed,
            "heal": heal,
            "test_accuracy": held,
            "test_loss": _finite(held_loss),
            "train_accuracy": trained,
            "loss": _finite(loss),
            **sizes,
            "date": made["date"],
            "commit": made["commit"],
        }

    def _network(
        self, way: Way, settings: Row | None, listener: Listener, task: tasks.Task
    ) -> tuple[torch.nn.Module, Row | None]:
        """The network as it is stored, and how it was healed."""
        model = models.build(self.config, task.side).to(task.device)
        state = _state(self.run.healed if way.healed and self._by_run(way) else self.run.weights)
        model.load_state_dict(state)
        apply_(model, self.config, way)
        if settings is None or settings["by"] == "run":
            return model, None if settings is None else {**settings, "lr": settings["lrs"][0]}
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        losses, best = [], None
        for lr in settings["lrs"]:
            model.load_state_dict(start)
            told = lambda epoch, epochs, lr=lr: listener.healing(lr, epoch, epochs)  # noqa: E731
            ties = tied(self.config, way)
            loss = heal_(model, self.config, task, settings["epochs"], lr, ties=ties, progress=told)
            losses.append(loss if math.isfinite(loss) else math.inf)
            if losses[-1] < min(losses[:-1], default=math.inf):
                best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if best is None:
            raise ValueError(
                f"healing {self.config.recipe} ({way}) diverged at every learning rate of {settings['lrs']}; "
                f"give a smaller one"
            )
        model.load_state_dict(best)
        lr = settings["lrs"][losses.index(min(losses))]
        return model, {**settings, "lr": lr, "losses": [_finite(loss) for loss in losses]}


def _state(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _digest(state: Mapping[str, Tensor]) -> str:
    """A hash of names and bits."""
    found = hashlib.sha256()
    for name, tensor in state.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(patterns(tensor).tobytes())
    return found.hexdigest()


def _finite(loss: float) -> float | None:
    """JSON has no infinity."""
    return loss if math.isfinite(loss) else None
