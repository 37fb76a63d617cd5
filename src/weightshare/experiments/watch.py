"""What a run tells of itself while it goes on, and how it is told to stop."""

from __future__ import annotations

from typing import Any


class Watch:
    """Does nothing at any of the events; those who want to see or to stop a run override some of them."""

    def started(self, epochs: int, epoch: int, steps: int) -> None:
        """The run begins in ``epoch`` (from 1) of ``epochs``, healing included, of so many steps each."""

    def step(self, epoch: int, step: int) -> None:
        """So many steps of the epoch are done."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch is over; its row, as in metrics.jsonl."""

    def measuring(self, done: int, total: int) -> None:
        """The trained network is being judged."""

    def stop(self) -> bool:
        """Whether the run shall save a checkpoint and stop; asked at every step."""
        return False


class Stopped(Exception):
    """The run was told to stop, and has saved a checkpoint."""


class Diverged(ValueError):
    """The loss is not a number any more."""
