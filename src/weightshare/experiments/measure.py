"""What a trained network is judged by: accuracy, prediction asymmetry, and what of its weights is shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weightshare.experiments import first_layer, torus
from weightshare.experiments.config import Config
from weightshare.experiments.exact import ExactCNN
from weightshare.experiments.models import TorusCNN, regularized
from weightshare.experiments.tasks import EVALUATE_BATCH, Task
from weightshare.metrics import Summary, summary, weight_sharing

Row = dict[str, Any]

EXACT_BATCH = 256  # patches in float64 take much memory


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """The share of right answers, and the mean cross-entropy; the model evaluates."""
    model.eval()
    right = count = 0
    loss = 0.0
    for images, labels in batches:
        logits = model(images)
        right += int((logits.argmax(dim=1) == labels).sum())
        loss += float(functional.cross_entropy(logits.double(), labels, reduction="sum"))
        count += len(labels)
    return right / count, loss / count


@torch.no_grad()
def prediction_asymmetry(
    model: nn.Module, task: Task, progress: Callable[[int, int], None] | None = None
) -> float:
    """The share of held-out images with two translations that are predicted differently.

    The convolutional network is asked in exact arithmetic (:mod:`weightshare.experiments.exact`), the others
    as they are.
    """
    model.eval()
    group = torus.translations(task.side, task.permutation).to(task.device)
    if isinstance(model, TorusCNN):
        exact = ExactCNN(model, largest=float(task.held.abs().max()))
        return torus.asymmetry(exact, task.held, group, batch=EXACT_BATCH, progress=progress)

    def predict(images: Tensor) -> Tensor:
        logits: Tensor = model(images)
        return logits.argmax(dim=1)

    return torus.asymmetry(predict, task.held, group, batch=EVALUATE_BATCH, progress=progress)


def tensors(model: nn.Module, config: Config) -> dict[str, Tensor]:
    """The parameters that the config's method regularises (or would), by name."""
    state = dict(model.named_parameters())
    return {name: state[name].detach() for names in regularized(config).values() for name in names}


def counts(model: nn.Module, config: Config) -> dict[str, Row]:
    """Of each of these parameters: weights, distinct values, zeros, entropy."""
    return {name: _counted(summary(w)) for name, w in tensors(model, config).items()}


def _counted(found: Summary) -> Row:
    return {
        "weights": found.weights,
        "distinct": found.distinct,
        "zeros": found.zeros,
        "entropy": found.entropy,
    }


def layers(model: nn.Module, config: Config, task: Task) -> dict[str, Row]:
    """:func:`counts` and shares, for the summary; the first layer's weight also has its filter score."""
    found = {}
    for name, w in tensors(model, config).items():
        counted = summary(w)
        found[name] = {
            **_counted(counted),
            "sharing": weight_sharing(w),
            "exact_sharing": counted.sharing,
            "sparsity": counted.sparsity,
        }
        layer = model.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.Conv2d) and w.ndim == 4:
            found[name]["as_dense"] = as_dense(counted, weight_sharing(w), layer, task.side)
        if name == first_layer.WEIGHT:
            found[name]["filter_score"] = first_layer.of_weights(w.cpu(), config).likeness().score
    return found


def as_dense(counted: Summary, sharing: float, layer: nn.Conv2d, side: int) -> Row:
    """A convolution counted as the matrix that it is, as the paper's tables do.

    Each weight stands once for every position of the output, as if padding had no border; everything else is
    zero. ``free_sparsity`` is the paper's way: all but the free parameters count as zero.
    """
    positions = math.ceil(side / layer.stride[0]) ** 2
    size = layer.in_channels * side * side * layer.out_channels * positions
    nonzero = counted.weights - counted.zeros
    distinct = round((1.0 - sharing) * nonzero)
    return {
        "weights": size,
        "sparsity": 1.0 - nonzero * positions / size,
        "free_sparsity": 1.0 - nonzero / size,
        "sharing": 1.0 - distinct / (nonzero * positions) if nonzero else 0.0,
        "exact_sharing": 1.0 - (1.0 - counted.sharing) / positions if nonzero else 0.0,
    }


def together(model: nn.Module, config: Config, found: dict[str, Row]) -> Row:
    """Sparsity and sharing of the regularised parameters together; of convolutions, as dense matrices."""
    dense = [row["as_dense"] for row in found.values() if "as_dense" in row]
    if dense:
        total = sum(row["weights"] for row in dense)
        kept = [(1.0 - row["sparsity"]) * row["weights"] for row in dense]
        return {
            "sparsity": 1.0 - sum(kept) / total,
            **{
                key: sum(row[key] * n for row, n in zip(dense, kept)) / (sum(kept) or 1.0)
                for key in ("sharing", "exact_sharing")
            },
        }
    chosen = list(tensors(model, config).values())
    everything = summary(chosen)
    return {
        "sparsity": everything.sparsity,
        "sharing": weight_sharing(torch.cat([w.reshape(-1) for w in chosen])),
        "exact_sharing": everything.sharing,
    }


def final(
    model: nn.Module, config: Config, task: Task, progress: Callable[[int, int], None] | None = None
) -> Row:
    """All of it, for a trained model. Accuracy and loss on the training set are those of evaluation.

    Prediction asymmetry takes minutes: runs that are for tuning (with a holdout) go without it.
    """
    held, held_loss = accuracy(model, task.held_out())
    trained, trained_loss = accuracy(model, task.training_set())
    found = layers(model, config, task)
    row: Row = {
        f"{task.held_name}_accuracy": held,
        f"{task.held_name}_loss": held_loss,
        "train_accuracy": trained,
        "loss": trained_loss,
    }
    if config.experiment != "cifar10" and not config.holdout:
        row["asymmetry"] = prediction_asymmetry(model, task, progress)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    row["layers"] = found
    return {**row, **together(model, config, found)}
