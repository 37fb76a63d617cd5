"""Training on with the ties and zeros that a network has, for networks that were tied or pruned afterwards.

What a run does itself after training, by its config's ``heal_epochs``, is in
:mod:`weightshare.experiments.train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

import weightshare as ws
from weightshare.experiments import measure
from weightshare.experiments.config import Config
from weightshare.experiments.models import regularized
from weightshare.experiments.tasks import Task

Progress = Callable[[int, int], None]


def heal_(
    model: nn.Module,
    config: Config,
    task: Task,
    epochs: int,
    lr: float,
    *,
    ties: bool,
    progress: Progress | None = None,
) -> float:
    """Train on for so many epochs, with a cosine schedule from ``lr``; returns the loss on the training set.

    Zeros of the config's layers stay zero, and with ``ties`` equal weights stay equal (their common gradient
    is the mean). The loss is that of the network as it evaluates; infinite or NaN if training diverged.
    Held-out data are not looked at. The same arguments and threads give the same bits.
    """
    names = [name for layer in regularized(config).values() for name in layer]
    with _ties_kept(model, names) if ties else _zeros_kept(model, names), torch.random.fork_rng():
        torch.manual_seed(config.seed)
        _train_(model, config, task, epochs, lr, progress)
    return measure.accuracy(model, task.training_set())[1]


@contextmanager
def _ties_kept(model: nn.Module, names: list[str]) -> Iterator[None]:
    ws.freeze_clusters(model, names, gradient="mean")
    try:
        yield
    finally:
        ws.unfreeze(model)


@contextmanager
def _zeros_kept(model: nn.Module, names: list[str]) -> Iterator[None]:
    """Without gradient they stay: momentum begins at 0, and nothing decays."""

    def hook(mask: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda gradient: gradient * mask

    weights = [model.get_parameter(name) for name in names]
    handles = [w.register_hook(hook(w.detach() != 0)) for w in weights]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _train_(
    model: nn.Module, config: Config, task: Task, epochs: int, lr: float, progress: Progress | None
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=config.momentum)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    model.train()
    for epoch in range(1, epochs + 1):
        for chosen in torch.split(torch.randperm(len(task.train)), config.batch):
            if len(chosen) < config.batch:
                break  # what is left over is dropped, as in training
            images, labels = task.batch(chosen)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if not math.isfinite(float(loss.detach())):
                return
            optimizer.step()
        schedule.step()
        if progress is not None:
            progress(epoch, epochs)
