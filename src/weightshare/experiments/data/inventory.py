"""What is there of each dataset, and whether it is what it should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weightshare.experiments.data import facts, locate


@dataclass(frozen=True)
class Found:
    """A dataset, its files (none where it is missing, or needs none), and how it was checked."""

    name: str
    files: tuple[Path, ...] = ()
    checked: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def state(self) -> str:
        """``"right"``, ``"missing"`` or ``"wrong"``."""
        if not self.problem:
            return "right"
        return "wrong" if self.files else "missing"

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.files)


def look(name: str, directory: str | Path | None = None) -> Found:
    """Look for a dataset, and hold it against what is known of it.

    >>> look("digits").state
    'right'
    """
    facts.facts(name)
    files: tuple[Path, ...] = ()
    try:
        files = () if name == "digits" else tuple(locate.files_of(name, directory))
        return Found(name, files, facts.check(locate.load(name, directory)))
    except ValueError as error:
        return Found(name, files, problem=str(error))
