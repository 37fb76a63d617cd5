"""Interleaved timing: every contender once per round, so that a busy machine slows all of them alike."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from weightshare.atomic import replacing

RESULTS = Path(__file__).resolve().parents[1] / "results"


def timed(contenders: dict[str, Callable[[], Any]], rounds: int = 5, budget: float = 60.0) -> dict[str, Any]:
    """Seconds of every contender: median, least, most; fewer rounds once ``budget`` seconds are spent."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for turn in range(rounds + 1):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            took = time.perf_counter() - start
            if turn > 0 or took > 3 * budget:  # the first turn warms up, unless one call is dear
                seconds[name].append(took)
        if time.perf_counter() - begin > budget and all(seconds.values()):
            break
    return {
        name: {"median": statistics.median(s), "min": min(s), "max": max(s), "rounds": len(s)}
        for name, s in seconds.items()
    }


def ratio(times: dict[str, Any], ours: str, peer: str) -> float:
    """How long ours takes in units of the peer, by medians."""
    return times[ours]["median"] / times[peer]["median"]


def extra_memory(call: Callable[[], Any]) -> int:
    """Largest number of bytes that NumPy held during a call beyond what it held before."""
    call()  # what the first call loads is not the call's
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def circumstances() -> dict[str, Any]:
    """Versions, processor, commit, date: what a number needs to be believed."""
    root = RESULTS.parent
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    packages = ("numpy", "numba", "scipy", "torch", "scikit-learn")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "processor": model[0].split(":")[1].strip() if model else platform.processor(),
        "versions": {name: metadata.version(name) for name in packages},
    }


def store(name: str, content: dict[str, Any]) -> Path:
    """Write results/<name>.json, keeping sections that this run did not measure.

    ``measured`` tells of every section under which circumstances its numbers came about.
    """
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    before = kept.get("circumstances")
    measured = kept.get("measured", {s: before for s in kept if s != "circumstances"})
    measured |= {section: content["circumstances"] for section in content if section != "circumstances"}
    with replacing(path) as file:
        file.write((json.dumps({**kept, **content, "measured": measured}, indent=1) + "\n").encode())
    return path
