"""What pulls tied weights apart: the spread of the gradient over the first layer, before and after training.

A cluster stays whole while the steps that part its weights stay below what R pulls them together by: at most
alpha, times the learning rate as the steps are. Where batch norm follows, the network does not depend on the
layer's scale, and small weights have large gradients.

python -m benchmarks.gradients RUN... (folders of finished runs with weights, as of cifar10)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.measure import RESULTS
from benchmarks.page import table
from weightshare.experiments import models, tasks
from weightshare.experiments.config import Config
from weightshare.experiments.files import circumstances, read_json, write_json
from weightshare.experiments.folder import Run
from weightshare.experiments.torch_settings import as_configured

STORE = RESULTS / "gradients-cifar10.json"
_BATCHES = 4


def measure(run: Run) -> dict[str, Any]:
    """Root mean square of weights and standard deviation of gradients, of batches of the training set."""
    config = Config.from_dict(run.config)
    found: dict[str, Any] = {"config": config.to_dict()}
    with as_configured(config):
        task = tasks.make(config, torch.device("cpu"))
        for name, file in (("before", run.initial), ("after", run.weights)):
            torch.manual_seed(config.seed)
            model = models.build(config, task.side)
            model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
            found[name] = _spread(model.train(), task, config)
    return found


def _spread(model: torch.nn.Module, task: tasks.Task, config: Config) -> dict[str, float]:
    weight = model.get_parameter("layer1.weight")
    spreads = []
    for _ in range(_BATCHES):
        images, labels = task.batch(torch.randperm(len(task.train))[: config.batch])
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(images), labels), weight)
        spreads.append(float(slope.std()))
    return {
        "weight": float(weight.detach().square().mean().sqrt()),
        "gradient": sum(spreads) / len(spreads),
        "distinct": weight.detach().unique().numel() / weight.numel(),
    }


def shown() -> str:
    """The table of what is stored."""
    if not STORE.is_file():
        return "Not run yet."
    rows = []
    for found in read_json(STORE)["runs"]:
        config = found["config"]
        settings = "".join(f", {key} {config[key]:g}" for key in ("alpha", "beta") if config[key])
        name = f"{config['recipe']}{settings}, {config['coupling']}" if settings else config["recipe"]
        for when in ("before", "after"):
            one = found[when]
            rows.append(
                [
                    name,
                    when,
                    f"{one['weight']:.1e}",
                    f"{one['gradient']:.1e}",
                    f"{100 - 100 * one['distinct']:.1f}",
                ]
            )
    columns = [
        "run",
        "training",
        "weights, root mean square",
        "gradients, standard deviation",
        "exactly tied, %",
    ]
    return table(columns, rows)


def main() -> None:
    """Measure, and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [Run.open(path) for path in parser.parse_args().runs]
    write_json(STORE, {"runs": [measure(run) for run in runs], "circumstances": circumstances()})
    print(shown())


if __name__ == "__main__":
    main()
