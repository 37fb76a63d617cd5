"""Plant one fault at a time in a copy of the package; the tests named beside it must turn red.

Run ``python tests/mutation.py`` (or ``make mutants``). A fault that no test notices makes it fail, and so
does a fault whose place is no longer in the source: this file has to follow the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300


@dataclass(frozen=True)
class Fault:
    """Replace ``old`` by ``new`` in ``file`` (once); ``tests`` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(
        "wrong comparison in sequential pooling",
        "kernels/pool.py",
        "stack[top - 1, 0] >= mean",
        "stack[top - 1, 0] <= mean",
        "test_collisions.py",
    ),
    Fault(
        "imminent merges what moves apart",
        "collisions/imminent.py",
        "state.y[:-1] < state.y[1:]",
        "state.y[:-1] > state.y[1:]",
        "test_collisions.py",
    ),
    Fault(
        "a run of ties has the velocity of its first rank",
        "generic.py",
        "y = runs.value + c * (d - 2 * runs.start - runs.count)",
        "y = runs.value + c * (d - 2 * runs.start - 1)",
        "test_prox_exact.py -k rational",
    ),
    Fault(
        "off-by-one rank in the clusters' velocity",
        "generic.py",
        "v = c[heads] * (d - 2 * start - size)",
        "v = c[heads] * (d - 2 * start - size + 1)",
        "test_prox_exact.py -k rational",
    ),
    Fault(
        "the last cluster is lost",
        "kernels/pool.py",
        "for t in range(lo, lo + k):",
        "for t in range(lo, lo + k - 1):",
        "test_collisions.py",
    ),
    Fault(
        "prefix sums in float32",
        "kernels/pool.py",
        "sums[at, 0] = s\n        sums[at, 1] = t",
        "sums[at, 0] = np.float32(s)\n        sums[at, 1] = 0.0",
        "test_prox_exact.py -k long",
    ),
    Fault(
        "ties within an epsilon",
        "generic.py",
        "new[:, 1:] = x[:, 1:] != x[:, :-1]",
        "new[:, 1:] = x[:, 1:] - x[:, :-1] > 1e-6",
        "test_prox_laws.py",
    ),
    Fault(
        "weights go back to the places of the first row",
        "generic.py",
        "torch.empty_like(order, dtype=per_cluster.dtype).scatter_(1, order,",
        "torch.empty_like(order, dtype=per_cluster.dtype).scatter_(1, order[:1].expand_as(order),",
        "test_prox_exact.py -k slice",
    ),
    Fault(
        "the tangent bends the wrong way",
        "kernels/pool.py",
        "if _mean(i, b, sums, weights) >= _mean(b, end[b], sums, weights):",
        "if _mean(i, b, sums, weights) < _mean(b, end[b], sums, weights):",
        "test_collisions.py -k bridge",
    ),
    Fault(
        "search takes the first of two touching particles",
        "collisions/search.py",
        "crosses = rightmost_collision(y, mass, start) >= half",
        "crosses = rightmost_collision(y, mass, start) > half",
        "test_collisions.py",
    ),
    Fault(
        "the certificate retires one percent too much",
        "kernels/cpu/hull.py",
        "(c * n - h)\n",
        "(1.01 * c * n - h)\n",
        "certified/test_exact.py",
    ),
    Fault(
        "rewinding the wrong way",
        "prox.py",
        "scale = 1.0 - rho",
        "scale = rho",
        "test_rewinding.py",
    ),
    Fault(
        "l1 does not know the sign",
        "generic.py",
        "(v - beta[row] * sign)",
        "(v - beta[row])",
        "test_prox_exact.py -k whole",
    ),
    Fault(
        "the gradient of a cluster is its sum",
        "ops.py",
        "(total / size.clamp(min=1.0))",
        "total",
        "test_autograd.py",
    ),
    Fault(
        "ties get the lowest of their ranks",
        "penalty.py",
        "rank = (first + stop - d)",
        "rank = (2 * first + 1 - d)",
        "test_penalty.py",
    ),
    Fault(
        "particles that meet do not share their momentum",
        "particles.py",
        "return self.c * (self.d - self.first[b] - self.stop[b])",
        "return self.c * (self.d - 2 * self.first[b] - 1)",
        "test_particles.py",
    ),
    Fault(
        "a batch is solved with its neighbour's first particle",
        "collisions/chain.py",
        "heads[self.offsets[:-1]] = True",
        "heads[self.offsets[:1]] = True",
        "test_prox_exact.py -k slice",
    ),
]


def survives(fault: Fault, tests: Path) -> bool:
    """Whether the tests stay green with the fault planted."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / "weightshare" / fault.file
        text = path.read_text()
        if text.count(fault.old) < 1:
            sys.exit(
                f"fault {fault.name!r}: its place is no longer in {fault.file}; update tests/mutation.py"
            )
        path.write_text(text.replace(fault.old, fault.new, 1))
        first, *options = fault.tests.split()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "NUMBA_CACHE_DIR": str(Path(folder) / "cache"),
        }
        try:
            run = subprocess.run(
                [*command, str(tests / first), *options],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:  # a fault may well turn a loop into an endless one
            return False
        if run.returncode not in (0, 1):  # neither green nor red: the run itself broke
            sys.exit(f"fault {fault.name!r}: pytest could not run\n{run.stdout}\n{run.stderr}")
        return run.returncode == 0


def healthy(tests: set[str]) -> None:
    """Stop unless everything that is to turn red is green without a fault."""
    files = sorted({f"tests/{test.split()[0]}" for test in tests})
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", *files]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "src"}).returncode:
        sys.exit("the tests are red before any fault is planted")


def main() -> None:
    """Plant every fault (or those whose name contains an argument) and report."""
    chosen = [f for f in FAULTS if all(word in f.name for word in sys.argv[1:])]
    alive = []
    healthy({fault.tests for fault in chosen})
    for fault in chosen:
        begin = time.perf_counter()
        survived = survives(fault, ROOT / "tests")
        print(
            f"{'SURVIVED' if survived else 'caught':8}  {time.perf_counter() - begin:5.1f} s  {fault.name}",
            flush=True,
        )
        if survived:
            alive.append(fault.name)
    if alive:
        sys.exit(f"{len(alive)} of {len(chosen)} faults were not noticed: {'; '.join(alive)}")
    print(f"all {len(chosen)} planted faults were caught")


if __name__ == "__main__":
    main()
