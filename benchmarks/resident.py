"""Resident memory of a model in a process of its own (Linux).

python -m benchmarks.resident KIND SIDE
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import weightshare as ws

LAYERS = 4
BLOCK = 1 << 20
KINDS: dict[str, tuple[bool, int | None, int]] = {  # packed?, block, bits
    "Linear, float32": (False, None, 4),
    "CodebookLinear, 4 bits": (True, None, 4),
    "CodebookLinear, 4 bits, block=2^20": (True, BLOCK, 4),
    "CodebookLinear, 2 bits, block=2^20": (True, BLOCK, 2),
}


def in_a_process(kind: str, side: int) -> dict[str, int]:
    """Bytes: ``resident`` what the model adds, ``call`` what the first call adds to that at its most."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.resident", kind, str(side)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout)
    return found


def model(kind: str, side: int) -> nn.Module:
    """Square layers whose weights have few values."""
    packed, block, bits = KINDS[kind]
    layers = []
    for _ in range(LAYERS):
        layer: nn.Module = nn.Linear(side, side, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(1 << bits)[torch.randint(1 << bits, (side, side))])
        layers.append(ws.CodebookLinear.from_dense(layer, per="tensor", block=block) if packed else layer)
    return nn.Sequential(*layers)


def status(key: str) -> int:
    """An entry of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def settle() -> None:
    """Give back what is not in use, and begin to look for a new maximum."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


@torch.no_grad()
def main() -> None:
    """Print what a model takes."""
    kind, side = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(2)
    model(kind, 64)(torch.ones(1, 64))  # libraries and compiled loops are there before it is measured
    settle()
    before = status("VmRSS")
    made = model(kind, side)
    settle()
    there = status("VmRSS")
    made(torch.ones(1, side))
    print(json.dumps({"resident": there - before, "call": status("VmHWM") - there}))


if __name__ == "__main__":
    main()
