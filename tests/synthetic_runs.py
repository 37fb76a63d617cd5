"""Folders of runs without any training: what tables, figures and reports are tested on."""

import torch

from weightshare.experiments import models, recipes
from weightshare.experiments.folder import Run

SIDES = {"torus": 8, "digits": 8, "cifar10": 32}
DATE = "2024-05-01T10:00:00+00:00"


def make(root, name, seed=0, accuracy=0.9, *, preset="smoke", finished=True, date=DATE, **settings):
    """A run of three epochs; the weights after it are those before, rounded to a grid, so that they tie."""
    config = recipes.recipe(name, preset, seed=seed, **settings)
    circumstances = {"date": date, "commit": "0" * 40, "processor": "none", "versions": {}}
    run = Run.create(recipes.folder(config, root), config.to_dict(), circumstances)
    torch.manual_seed(seed)
    before = models.build(config, SIDES[config.experiment]).state_dict()
    after = {k: (4 * v).round() / 4 if v.is_floating_point() else v for k, v in before.items()}
    torch.save(before, run.initial)
    score = "valid_accuracy" if config.holdout else "test_accuracy"
    names = [n for n in ("layer1.weight", "layer2.weight", "layer1.bias") if n in after]
    for epoch in range(1, 4):
        layers = {n: {**counts(after[n]), "distinct": after[n].numel() // 4**epoch + 1} for n in names}
        run.append(
            {
                "epoch": epoch, "lr": 0.1, "loss": 1 / epoch, "train_accuracy": min(1.0, accuracy + 0.02),
                score: accuracy - 0.1 / epoch, "seconds": 1.0, "prox_seconds": 0.1, "layers": layers,
            }
        )  # fmt: skip
    if finished:
        torch.save(after, run.weights)
        layers = {n: {**counts(after[n]), "sharing": 0.9, "exact_sharing": 0.8} for n in names}
        layers["layer1.weight"]["filter_score"] = 0.25
        run.finish(
            circumstances,
            {
                score: accuracy, "train_accuracy": 1.0, "loss": 0.1, "epochs": 3, "seconds": 3.0,
                "seconds_per_epoch": 1.0, "parameters": sum(v.numel() for v in after.values()),
                "layers": layers, "sparsity": 0.5, "sharing": 0.9, "exact_sharing": 0.8, "healed": None,
                **({"asymmetry": 0.4} if config.experiment != "cifar10" else {}),
            },
        )  # fmt: skip
    return run


def counts(w):
    """What the log counts of a tensor."""
    from weightshare.metrics import summary

    found = summary(w)
    return {
        "weights": found.weights,
        "distinct": found.distinct,
        "zeros": found.zeros,
        "entropy": found.entropy,
    }
