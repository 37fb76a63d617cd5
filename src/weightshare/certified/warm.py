"""Say once, through logging, that a cold install is compiling."""

from __future__ import annotations

import logging
import threading

import numpy as np

from weightshare.kernels.cpu.canary import canary

_lock = threading.Lock()
_announced = False


def announce_cold_start() -> None:
    """Compile or load one tiny kernel; if it was not in the cache, neither are the others: log it."""
    global _announced
    if _announced:
        return
    with _lock:
        if _announced:
            return
        canary(np.zeros(1))
        if canary.stats.cache_misses:
            logging.getLogger("weightshare").info(
                "compiling the CPU kernels: about 20 seconds, once; later processes load them from the cache"
            )
        _announced = True
