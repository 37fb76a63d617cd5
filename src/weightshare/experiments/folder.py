"""The folder of one run: what is in it, and how it is read and written.

    <runs>/torus-mlp-r/cpu/seed0/
        config.json      {"config": every setting by its key, "circumstances": date, commit, versions}
        metrics.jsonl    a line for each epoch
        checkpoint.pt    while the run is not finished: all it takes to go on
        initial.pt  weights.pt  healed.pt     state_dicts: at the start, at the end, after healing
        tensorboard/  figures/
        summary.json     written last: {"config", "circumstances", "metrics"}

Accuracies and asymmetry are shares in [0, 1].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weightshare.experiments.files import read_json, write_bytes, write_json

Row = dict[str, Any]

DEFAULT_ROOT = Path("runs")


class Run:
    """A run's folder. ``Run.open`` reads one that is there, ``Run.create`` begins one.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "torus-mlp" / "smoke" / "seed0"
    >>> run = Run.create(folder, {"recipe": "torus/mlp", "seed": 0}, {"date": "2024-05-01"})
    >>> run.append({"epoch": 1, "loss": 0.7})
    >>> run.append({"epoch": 2, "loss": 0.5})
    >>> run.finished
    False
    >>> run.finish({"date": "2024-05-01"}, {"test_accuracy": 0.95})
    >>> again = Run.open(folder)
    >>> again.config["recipe"], len(again.metrics()), again.summary()["metrics"], again.finished
    ('torus/mlp', 2, {'test_accuracy': 0.95}, True)
    """

    def __init__(self, path: Path, config: Row, circumstances: Row) -> None:
        self.path = path
        self.config = config
        self.circumstances = circumstances

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in the folder ``path``."""
        path = Path(path)
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"{path} is not the folder of a run: there is no config.json in it")
        stored = read_json(file)
        if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict):
            raise ValueError(f'{file} must hold {{"config": {{...}}, ...}}; was it edited by hand?')
        return cls(path, stored["config"], stored.get("circumstances", {}))

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], circumstances: Mapping[str, Any]) -> Run:
        """Begin a run in ``path``; what an earlier one left there is removed first."""
        path = Path(path)
        for name in ("summary.json", "config.json", "metrics.jsonl", *_TENSORS):
            (path / name).unlink(missing_ok=True)
        for folder in ("tensorboard", "figures"):
            for file in sorted((path / folder).glob("*")):
                file.unlink()
        run = cls(path, dict(config), dict(circumstances))
        write_json(path / "config.json", {"config": run.config, "circumstances": run.circumstances})
        return run

    @property
    def name(self) -> str:
        """The last three parts of the path: recipe, preset and seed."""
        return "/".join(self.path.resolve().parts[-3:])

    @property
    def finished(self) -> bool:
        """Whether the summary is written, which is the last thing a run does."""
        return (self.path / "summary.json").is_file()

    @property
    def checkpoint(self) -> Path:
        """What an unfinished run goes on from."""
        return self.path / "checkpoint.pt"

    @property
    def initial(self) -> Path:
        """The model's state_dict at the start."""
        return self.path / "initial.pt"

    @property
    def weights(self) -> Path:
        """The model's state_dict after training."""
        return self.path / "weights.pt"

    @property
    def healed(self) -> Path:
        """The model's state_dict after training on with frozen clusters, if the run did."""
        return self.path / "healed.pt"

    @property
    def tensorboard(self) -> Path:
        """The folder for TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def figures(self) -> Path:
        """The folder for pictures of this run."""
        return self.path / "figures"

    def metrics(self) -> list[Row]:
        """The rows of all epochs so far. A last line that a kill has cut short is left out."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last newline is torn
        return [json.loads(line) for line in lines]

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of an epoch."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put back the rows up to a checkpoint: what was written after it is cut."""
        write_bytes(self.path / "metrics.jsonl", "".join(map(_line, rows)).encode())

    def summary(self) -> Row:
        """The config, the circumstances and the final metrics of a finished run."""
        if not self.finished:
            raise ValueError(
                f"the run in {self.path} is not finished; the command that started it goes on with it"
            )
        found: Row = read_json(self.path / "summary.json")
        return found

    def finish(self, circumstances: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Write the summary; after that the checkpoint is of no use."""
        summary = {"config": self.config, "circumstances": dict(circumstances), "metrics": dict(metrics)}
        write_json(self.path / "summary.json", summary)
        self.checkpoint.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"Run({self.name}, {'finished' if self.finished else 'not finished'})"


_TENSORS = ("checkpoint.pt", "initial.pt", "weights.pt", "healed.pt")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def find_runs(root: str | Path = DEFAULT_ROOT) -> list[Run]:
    """Every run below ``root`` (or at it), in the order of their paths."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; `weightshare train` makes runs, --runs says where")
    return [Run.open(file.parent) for file in sorted(root.rglob("config.json"))]
