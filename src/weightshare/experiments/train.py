"""One run, from its config to its summary: trained, judged, healed if asked; resumed at any point.

All that is random follows from the config's seed: the data, the initial weights, the order of the images in
each epoch, and (through PyTorch's generator, whose state is in the checkpoint) augmentation and dropout. So a
run that was killed goes on to the same bits.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import weightshare as ws
from weightshare.experiments import checkpoint, measure, models, recipes, tasks
from weightshare.experiments.board import Board
from weightshare.experiments.checkpoint import Position
from weightshare.experiments.config import Config
from weightshare.experiments.files import DiskFull, circumstances, disk_full, save_tensors
from weightshare.experiments.folder import DEFAULT_ROOT, Run
from weightshare.experiments.rules import Clock, rules
from weightshare.experiments.torch_settings import as_configured
from weightshare.experiments.watch import Diverged, Stopped, Watch

CHECKPOINT_SECONDS = 30.0
"""At least this long between two checkpoints, so that writing them does not take the time of training."""


def run(
    config: Config,
    root: str | Path = DEFAULT_ROOT,
    *,
    resume: bool = True,
    watch: Watch | None = None,
    tensorboard: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Run:
    """Do the run of ``config`` in its folder below ``root``, or what is left of it; return the finished run.

    Args:
        resume: go on from the folder's checkpoint; a finished run is returned as it is. ``False``: anew.
        watch: is told of every step and epoch, and may stop the run (:class:`Stopped`).
        tensorboard: also write TensorBoard's event files.
        checkpoint_seconds: at least this long between two checkpoints.

    >>> import tempfile
    >>> config = recipes.recipe("digits/mlp-r", "smoke", epochs=1)
    >>> done = run(config, tempfile.mkdtemp(), tensorboard=False)
    >>> done.finished, [row["epoch"] for row in done.metrics()]
    (True, [1])
    """
    folder = recipes.folder(config, root)
    with checkpoint.alone(folder):
        found = existing(folder, config) if resume else None
        if found is not None and found.finished:
            return found
        with torch.random.fork_rng(), as_configured(config):
            try:
                torch.manual_seed(config.seed)
                trainer = _Trainer(config, watch or Watch(), checkpoint_seconds)
                made = found or Run.create(folder, config.to_dict(), circumstances())
                trainer.go(made, tensorboard)
            except OSError as error:
                if disk_full(error):
                    raise DiskFull(
                        f"no room left on the disk for {folder}; what was written before is whole. Free "
                        f"some space and run the same command again"
                    ) from error
                raise
    return made


def existing(folder: Path, config: Config) -> Run | None:
    """The run in the folder, if there is one; it must have the same config."""
    if not (folder / "config.json").is_file():
        return None
    found = Run.open(folder)
    there, wanted = Config.from_dict(found.config).to_dict(), config.to_dict()
    different = [key for key in wanted if there[key] != wanted[key]]
    if different:
        shown = ", ".join(f"{key}={there[key]!r} (now {wanted[key]!r})" for key in different)
        raise ValueError(
            f"{folder} holds a run with other settings: {shown}; give another --runs folder, or begin it "
            f"anew with --no-resume"
        )
    return found


def device_of(config: Config) -> torch.device:
    """The device of a config; "auto" is CUDA where there is one."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device {config.device!r} cannot be used here ({str(error).splitlines()[0]}); give --device cpu"
        ) from None
    return device


class _Trainer:
    """The parts of a run, and where it is."""

    def __init__(self, config: Config, watch: Watch, checkpoint_seconds: float) -> None:
        self.config, self.watch, self.checkpoint_seconds = config, watch, checkpoint_seconds
        self.device = device_of(config)
        self.task = tasks.make(config, self.device)
        self.steps = len(self.task.train) // config.batch  # what is left over is dropped
        self.model = models.build(config, self.task.side).to(self.device)
        self.clock = Clock()
        self.optimizer = self._optimizer(config.lr)
        found = rules(config, self.clock)
        self.sharing = ws.WeightSharing(self.model, self.optimizer, found) if found else None
        self.position = Position()
        self.rows: list[dict[str, Any]] = []
        self.results: dict[str, Any] = {}
        self.saved = time.monotonic()

    # The way of a run.

    def go(self, run: Run, tensorboard: bool) -> None:
        """Begin or go on, to the summary."""
        self.run = run
        if run.checkpoint.is_file():
            self._restore()
        else:
            run.rewrite([])
            save_tensors(run.initial, self.model.state_dict())
        total = self.config.epochs + self.config.heal_epochs
        self.watch.started(total, self.position.epoch, self.steps)
        with Board(run.tensorboard if tensorboard else None, len(self.rows)) as board:
            if self.position.phase == "train":
                self._train(1, self.config.epochs, self.config.lr, board)
                save_tensors(run.weights, self.model.state_dict())
                self._judge("trained")
            if self.config.heal_epochs:
                if self.position.phase == "train":
                    self._begin_healing()
                    self._save()
                self._train(self.config.epochs + 1, total, self.config.heal_lr, board)
                ws.unfreeze(self.model)
                save_tensors(run.healed, self.model.state_dict())
                self._judge("healed")
            metrics = self._summary()
            board.final(metrics)
        self.run.finish(circumstances(), metrics)

    def _train(self, first: int, last: int, lr: float, board: Board) -> None:
        """The epochs ``first`` to ``last``, as far as they are not done."""
        while self.position.epoch <= last:
            share = (self.position.epoch - first) / (last - first + 1)
            self._epoch(_scheduled(lr, share, self.config.schedule))
            row = self._row(self.position.epoch == last)
            self.rows.append(row)
            self.run.append(row)
            board.epoch(row)
            self.watch.epoch(row)
            self.position.next_epoch(self.position.epoch + 1)
            if self.position.epoch > last or self._due():
                self._save()

    def _epoch(self, lr: float) -> None:
        """What is left of an epoch."""
        config, position = self.config, self.position
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # The order is a function of seed and epoch: it need not be in the checkpoint.
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + position.epoch)
        order = torch.randperm(len(self.task.train), generator=generator)
        self.model.train()
        while position.step < self.steps:
            if self.watch.stop():
                self._save()
                raise Stopped(f"stopped in epoch {position.epoch}, with a checkpoint")
            if self._due():
                self._save()
            start, self.clock.seconds = time.perf_counter(), 0.0
            chosen = order[position.step * config.batch : (position.step + 1) * config.batch]
            self._step(*self.task.batch(chosen))
            position.step += 1
            position.seconds += time.perf_counter() - start
            position.prox_seconds += self.clock.seconds
            self.watch.step(position.epoch, position.step)

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        logits = self.model(images)
        loss = functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is {value} in epoch {self.position.epoch}, step {self.position.step + 1} of "
                f"{self.config.recipe}: training has diverged; a smaller lr may help"
            )
        self.optimizer.step()
        self.position.loss += value
        self.position.right += int((logits.argmax(dim=1) == labels).sum())

    def _row(self, last: bool) -> dict[str, Any]:
        """The row of the epoch that is over."""
        position, config = self.position, self.config
        row: dict[str, Any] = {
            "epoch": position.epoch,
            "phase": position.phase,
            "lr": self.optimizer.param_groups[0]["lr"],
            "loss": position.loss / self.steps,
            "train_accuracy": position.right / (self.steps * config.batch),
        }
        if last or position.epoch % config.evaluate_every == 0:
            held, _ = measure.accuracy(self.model, self.task.held_out())
            row[f"{self.task.held_name}_accuracy"] = held
            row["layers"] = measure.counts(self.model, config)
        return {**row, "seconds": position.seconds, "prox_seconds": position.prox_seconds}

    # Between the phases.

    def _begin_healing(self) -> None:
        """Freeze the ties of ``weights.pt``, which the model has, and start a new optimizer."""
        if self.sharing is not None:
            self.sharing.remove()
            self.sharing = None
        names = [name for layer in models.regularized(self.config).values() for name in layer]
        ws.freeze_clusters(self.model, names, gradient="mean")
        self.optimizer = self._optimizer(self.config.heal_lr)
        self.position.phase = "heal"

    def _judge(self, name: str) -> None:
        def progress(done: int, total: int) -> None:
            self.watch.measuring(done, total)
            if self.watch.stop():
                raise Stopped("stopped while the trained network was judged; its checkpoint is there")

        found = measure.final(self.model, self.config, self.task, progress)
        phase = [row for row in self.rows if row["phase"] == self.position.phase]
        seconds = sum(row["seconds"] for row in phase)
        self.results[name] = {
            **found,
            "epochs": len(phase),
            "seconds": seconds,
            "seconds_per_epoch": seconds / len(phase),
            "prox_seconds_per_epoch": sum(row["prox_seconds"] for row in phase) / len(phase),
        }

    def _summary(self) -> dict[str, Any]:
        return {**self.results["trained"], "healed": self.results.get("healed")}

    def _optimizer(self, lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(self.model.parameters(), lr=lr, momentum=self.config.momentum)

    # Checkpoints.

    def _due(self) -> bool:
        return time.monotonic() - self.saved >= self.checkpoint_seconds

    def _parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        if self.sharing is not None:
            parts["sharing"] = self.sharing
        return parts

    def _save(self) -> None:
        checkpoint.save(self.run.checkpoint, self.position, self._parts(), self.rows, self.results)
        self.saved = time.monotonic()

    def _restore(self) -> None:
        state = checkpoint.load(self.run.checkpoint)
        if state["position"].phase == "heal":
            # What is tied is what was equal after training, not what may have become equal since.
            weights = torch.load(self.run.weights, map_location="cpu", weights_only=True)
            self.model.load_state_dict(weights)
            self._begin_healing()
        for name, part in self._parts().items():
            part.load_state_dict(state["parts"][name])
        self.position, self.rows, self.results = state["position"], state["rows"], state["results"]
        self.run.rewrite(self.rows)
        checkpoint.restore_randomness(state)


def _scheduled(lr: float, share: float, schedule: str) -> float:
    """The learning rate when ``share`` of the epochs are done."""
    return lr * 0.5 * (1.0 + math.cos(math.pi * share)) if schedule == "cosine" else lr
