"""Files that are either whole or not there, and what a run remembers about where it was made."""

from __future__ import annotations

import datetime
import errno
import functools
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from weightshare.atomic import replacing


class DiskFull(OSError):
    """There is no room left, and what to do about it."""


def disk_full(error: BaseException) -> bool:
    """Whether an error says that there is no room left."""
    codes = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in codes)


def write_bytes(path: Path, data: bytes) -> None:
    """Write atomically."""
    with replacing(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """Write atomically, for people to read too; NaN and infinity are refused, since JSON has none."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read, with an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); was it edited by hand?") from None


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def circumstances() -> dict[str, Any]:
    """When, with which versions and on what: the part of a result that is not in its config."""
    import numpy
    import torch

    import weightshare

    return {
        "date": now(),
        "commit": _commit(),
        "versions": {
            "weightshare": weightshare.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "processor": _processor(),
    }


@functools.cache  # what was loaded stays what runs, whatever is checked out meanwhile
def _commit() -> str | None:
    """The commit of the checkout that the package is in; None where it is installed from elsewhere."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, check=False, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):  # no git here: then there is no commit to tell
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not git("ls-files", "--", Path(__file__).name):
        return None
    commit = git("rev-parse", "HEAD")
    return f"{commit}+changes" if git("status", "--porcelain", "--", str(here.parent)) else commit


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def save_tensors(path: Path, value: Any) -> None:
    """``torch.save``, atomically."""
    import torch

    with replacing(path) as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # PyTorch's writer has an error of its own for a write that failed
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
