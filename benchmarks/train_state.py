"""Train a perceptron on scikit-learn's digits, its large layer with the prox after every step, until it ties.

    python -m benchmarks.train_state

Stores the weights as the prox of a late step receives them (after the gradient step has pulled
ties apart), the clusters of the step before, and the coefficient, in build/train-state.npz (200 MB at
the default width, about 5 * 10^7 weights); what it is and how it came about in results/train-state.json.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.inputs import STATE
from benchmarks.measure import circumstances, store
from weightshare.atomic import replacing
from weightshare.certified import ClusterTable, prox_array


def train(width: int, steps: int, lr: float, alpha: float) -> None:
    """The loop of the paper's appendix: collisions take alpha as it is, the displacement is lr times v."""
    torch.manual_seed(0)
    digits = load_digits()
    inputs, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    # Batch norm as in the paper's networks: without it most units die, and the weights of a dead unit stay
    # bitwise tied through the gradient step, which is not what a prox meets.
    layers = [
        nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10),
    ]  # fmt: skip
    model, tied = nn.Sequential(*layers), layers[3].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    threads, previous, before = torch.get_num_threads(), None, None
    given = np.empty(tied.numel(), np.float32)
    for step in range(steps):
        batch = torch.randint(0, len(labels), (128,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        weights = tied.detach().numpy().reshape(-1)
        given[:] = weights
        rate = schedule.get_last_lr()[0]
        schedule.step()
        shown = step % 25 == 0 or step >= steps - 2  # a table of clusters takes longer than the prox
        result = prox_array(given, weights, alpha=alpha, scale=rate, threads=threads, clusters=shown)
        if shown:
            previous, before = before, result.clusters
            share = _tied(before, given.size)
            print(f"step {step} loss {loss.item():.3f} clusters {before.count} tied {share:.4f}", flush=True)
    assert previous is not None
    model.eval()
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).double().mean().item()
    counts = np.diff(np.append(previous.starts, given.size))
    with replacing(STATE) as file:
        np.savez(file, weights=given, alpha=alpha, centres=previous.values, counts=counts)
    config = {"width": width, "steps": steps, "lr": lr, "alpha": alpha, "batch": 128, "seed": 0}
    outcome = {
        "weights": given.size, "training accuracy": accuracy, "tied": _tied(before, given.size),
        "clusters": before.count,
    }  # fmt: skip
    store("train-state", {"config": config, "outcome": outcome, "circumstances": circumstances()})
    print(f"training accuracy {accuracy:.3f}, wrote {STATE.name}")


def _tied(clusters: ClusterTable, d: int) -> float:
    """Share of weights that share their value with another."""
    sizes = np.diff(np.append(clusters.starts, d))
    return float(sizes[sizes > 1].sum() / d)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=7071)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--alpha", type=float, default=2e-3)
    arguments = parser.parse_args()
    train(arguments.width, arguments.steps, arguments.lr, arguments.alpha)
