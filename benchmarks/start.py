"""What first calls in a fresh process take, with an empty cache of compiled kernels and with a full one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

SCRIPT = """
import json, time
import torch
began = time.perf_counter()
import weightshare as ws
imported = time.perf_counter()
torch.set_num_threads(2)
w = torch.randn(1_000_000)
calls = {
    "first call": lambda: ws.prox(w, 1e-3),
    "clusters": lambda: ws.prox(w, 1e-3, return_clusters=True),
    "tied": lambda: ws.prox(w.round() + 1e-6 * w, 1e-3),
    "short": lambda: ws.prox(w[:1000], 1e-3),
    "rows": lambda: ws.prox(w.view(1000, 1000), 1e-3, dim=1),
    "bf16": lambda: ws.prox(w.bfloat16(), 1e-3),
    "float64": lambda: ws.prox(w.double(), 1e-3),
    "isotonic": lambda: ws.isotonic_regression(w),
}
seconds = {"import": imported - began}
for name, call in calls.items():
    start = time.perf_counter()
    call()
    seconds[name] = time.perf_counter() - start
print(json.dumps(seconds))
"""


def start_section() -> dict[str, Any]:
    """Seconds of the import (after torch) and of each first call, cold and (median of five) warm."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _process(cache)
        warm = sorted((_process(cache) for _ in range(5)), key=lambda seconds: seconds["first call"])[2]
    total = sum(seconds for name, seconds in cold.items() if name != "import")
    return {"cold": cold, "warm": warm, "cold, all routes": total, "warm, first call": warm["first call"]}


def _process(cache: str) -> dict[str, float]:
    """One fresh process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    seconds: dict[str, float] = json.loads(run.stdout)
    return seconds
