"""TensorBoard's event files, from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Board:
    """Writes below a folder; ``Board(None, 0)`` writes nothing. Epochs after ``epoch`` are written anew."""

    def __init__(self, folder: Path | None, epoch: int) -> None:
        self.writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder), purge_step=epoch + 1)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def epoch(self, row: Mapping[str, Any]) -> None:
        """All numbers of an epoch's row."""
        if self.writer is not None:
            for name, value in _scalars(row):
                self.writer.add_scalar(name, value, row["epoch"])
            self.writer.flush()

    def final(self, metrics: Mapping[str, Any]) -> None:
        """The numbers of the summary."""
        if self.writer is not None:
            for name, value in _scalars(metrics):
                self.writer.add_scalar(f"final/{name}", value, metrics["epochs"])


def _scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and name != "epoch":
            yield prefix + name, value
