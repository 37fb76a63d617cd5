"""Mutated files: each is refused with a clear error, or what is loaded from it is right.

    python tests/compress/fuzz.py --cases 10000 --seed 0

Half of the cases are files of :func:`weightshare.save` that were mutated blindly: they must raise ValueError
or OSError, or give back every tensor bit for bit. A quarter have had their checksums put right again: they
may also hold other tensors, but within the limit. The others are plain safetensors and torch checkpoints, as
the command line reads them. Prints the slowest case, the growth of memory and a closing line; exits non-zero
on failure.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import weightshare as ws
from compress.forge import forged, mutated
from compress.samples import model_state, same, tensor
from weightshare.compress.files import open_tensors

State = dict[str, torch.Tensor]
LIMIT = 1 << 24
SLOW = 60  # seconds: no file of some kilobytes may take that long on any machine
ROOM = 512 << 20  # bytes by which the process may grow


def small_state(seed: int) -> State:
    """A few tensors of a kilobyte or two."""
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.standard_normal(9).astype(np.float32))
    skew = torch.from_numpy(np.minimum(rng.geometric(0.5, 4000) - 1, 8))
    state = {
        "w": values[skew].view(40, 100),
        "h": tensor(torch.bfloat16, (30, 30), "few", seed),
        "b": tensor(torch.bool, (500,), "two", seed),
        "s": tensor(torch.float32, (600,), "rare", seed),
        "r": tensor(torch.float64, (20,), "any", seed),
        "n": torch.tensor(seed),
        "e": torch.empty(0, 2),
    }
    state["t"] = state["w"]
    return state


def samples(folder: Path) -> list[tuple[bytes, State]]:
    """Good compressed files, and what is in them."""
    found = []
    for state in (model_state(), small_state(0), small_state(1), {"one": torch.zeros(3000)}, {}):
        for prefer in ("size", "speed"):
            ws.save(state, folder / "good", prefer=prefer, metadata={"about": "a test"})
            found.append(((folder / "good").read_bytes(), state))
    return found


def foreign(folder: Path) -> list[bytes]:
    """Good files of others: plain safetensors, checkpoints in both formats of torch."""
    from safetensors.torch import save

    state = {name: t.clone() for name, t in small_state(2).items()}
    new, old = io.BytesIO(), io.BytesIO()
    torch.save(state, new)
    torch.save({"model": state, "step": 3}, old, _use_new_zipfile_serialization=False)
    return [save(state, {"format": "pt"}), new.getvalue(), old.getvalue()]


def blind_case(path: Path, raw: bytes, state: State, rng: np.random.Generator) -> str | None:
    """What went wrong with a file that was mutated blindly."""
    path.write_bytes(mutated(raw, rng))
    try:
        found = ws.load(path, limit=LIMIT)
    except (ValueError, OSError) as error:
        return None if str(error) else "an error without words"
    if list(found) == list(state) and all(same(found[name], state[name]) for name in state):
        return None
    return "other tensors, and no error"


def forged_case(path: Path, raw: bytes, rng: np.random.Generator) -> str | None:
    """What went wrong with a file whose checksums are right."""
    path.write_bytes(forged(raw, rng))
    try:
        found = ws.load(path, limit=LIMIT)
    except (ValueError, OSError) as error:
        return None if str(path) in str(error) else f"an error that does not name the file: {error}"
    distinct = {id(t): t.nbytes for t in found.values()}
    return None if sum(distinct.values()) <= LIMIT else "more bytes than the limit"


def foreign_case(path: Path, raw: bytes, rng: np.random.Generator) -> str | None:
    """What went wrong with a mutated file of others."""
    path.write_bytes(mutated(raw, rng))
    try:
        tensors = open_tensors(path, limit=LIMIT)
        for name in tensors:
            tensors[name].numel()
    except (ValueError, OSError) as error:
        return None if str(error) else "an error without words"
    return None


def run_case(seed: int, path: Path, good: list[tuple[bytes, State]], others: list[bytes]) -> str | None:
    """One case; what went wrong, or None."""
    rng = np.random.default_rng(seed)
    raw, state = good[int(rng.integers(len(good)))]
    try:
        if seed % 4 < 2:
            return blind_case(path, raw, state, rng)
        if seed % 4 == 2:
            return forged_case(path, raw, rng)
        return foreign_case(path, others[int(rng.integers(len(others)))], rng)
    except Exception:
        return traceback.format_exc()


def fuzz(cases: int, seed: int, folder: Path) -> list[str]:
    """Run the cases; what went wrong, each with its seed."""
    good, others = samples(folder), foreign(folder)
    wrong = []
    for case in range(seed, seed + cases):
        found = run_case(case, folder / "mutated", good, others)
        if found is not None:
            wrong.append(f"seed {case}: {found}")
    return wrong


def main() -> int:
    """Run the cases; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, about mutated checkpoints
    begin, failures, slowest = time.perf_counter(), 0, (0.0, -1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good, others = samples(folder), foreign(folder)
        process, before, most = psutil.Process(), psutil.Process().memory_info().rss, 0
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            start = time.perf_counter()
            wrong = run_case(seed, folder / "mutated", good, others)
            slowest = max(slowest, (time.perf_counter() - start, seed))
            most = max(most, process.memory_info().rss - before)
            if wrong is not None:
                failures += 1
                print("FAILED seed", seed, wrong, flush=True)
    failures += (slowest[0] > SLOW) + (most > ROOM)
    print(f"slowest: seed {slowest[1]}, {slowest[0]:.1f} s; memory grew by {most / 2**20:.0f} MB")
    took = time.perf_counter() - begin
    print(f"fuzz: {arguments.cases} files, {failures} failed, seed {arguments.seed}, {took:.0f} s")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
