"""Say once, through logging, that kernels are being compiled: first calls of a cold install take seconds."""

from __future__ import annotations

import logging
from typing import Any

from numba.core import event

MESSAGE = (
    "compiling the CPU kernels that this call needs: some seconds, once (about 20 in all); later processes "
    "load them from the cache"
)


class _Announcer(event.Listener):  # type: ignore[misc]
    """Hears of every compilation that the cache could not spare."""

    announced = False

    def on_start(self, start: Any) -> None:
        """Log the first one of a kernel of this package."""
        ours = start.data["dispatcher"].py_func.__module__.startswith("weightshare.")
        if ours and not self.announced:
            self.announced = True
            logging.getLogger("weightshare").info(MESSAGE)

    def on_end(self, end: Any) -> None:
        """Nothing to say."""


def announce() -> None:
    """From now on, announce compilations."""
    event.register("numba:compile", _Announcer())
