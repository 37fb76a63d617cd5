"""The libraries of the ``compress`` extra, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def library(name: str, needed_for: str) -> Any:
    """Import ``name``; where it is missing, say what for it is needed and what to install."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{needed_for} needs {missing.name}; pip install 'weightshare[compress]'", name=missing.name
        ) from None
