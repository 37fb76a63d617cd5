"""A run's checkpoint: tensors and plain numbers, written whole or not at all; and one process to a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weightshare.experiments.files import save_tensors

_VERSION = 1


@dataclass
class Position:
    """Where a run is: phase, epoch (from 1), steps done in it, and what has been summed up in them."""

    phase: str = "train"
    epoch: int = 1
    step: int = 0
    loss: float = 0.0
    right: int = 0
    seconds: float = 0.0
    prox_seconds: float = 0.0

    def next_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.__dict__.update(Position(phase=self.phase, epoch=epoch).__dict__)


def save(
    path: Path, position: Position, parts: dict[str, Any], rows: list[dict[str, Any]], results: dict[str, Any]
) -> None:
    """Write what it takes to go on bitwise; ``parts`` have a state_dict."""
    state = {
        "version": _VERSION,
        "position": position.__dict__,
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "rng": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "rows": json.dumps(rows),
        "results": json.dumps(results),
    }
    save_tensors(path, state)


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` has written; ``position``, ``rows`` and ``results`` as they were."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); --no-resume begins the run anew"
        ) from error
    if state.get("version") != _VERSION:
        raise ValueError(
            f"{path} is of another version of weightshare; finish the run with that, or begin it anew with "
            f"--no-resume"
        )
    state["position"] = Position(**state["position"])
    state["rows"], state["results"] = json.loads(state["rows"]), json.loads(state["results"])
    return state


def restore_randomness(state: dict[str, Any]) -> None:
    """Set PyTorch's generators to where they were."""
    torch.set_rng_state(state["rng"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder of a run; a second process that wants it is refused. A killed holder holds nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        _lock(handle, folder)
        for part in folder.glob(".*.part"):  # left by a process that was killed while it wrote
            part.unlink()
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"the run in {folder} is being trained by another process") from None
