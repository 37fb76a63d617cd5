"""Plant one fault at a time in a copy of the package; the tests named beside it must turn red.

Run ``python tests/mutation.py`` (or ``make mutants``), with words to choose faults whose names contain them.
A fault that no test notices makes it fail, and so does a fault whose place is no longer in the source: this
file has to follow the code. All places are looked up before anything runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300
AT_ONCE = 2


@dataclass(frozen=True)
class Fault:
    """Replace ``old``, which stands in ``file`` once, by ``new``; ``tests`` (pytest's ids) must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(
        "equal weights have the slope of their first rank",
        "kernels/cpu/ranks.py",
        "slope = np.float64(begin + i - d) / (d - 1)",
        "slope = np.float64(2 * begin + 1 - d) / (d - 1)",
        "test_penalty.py::test_ranks_in_float32_are_those_in_float64",
    ),
    Fault(
        "values that occur as often as it takes are left out of the codebook",
        "compress/kernels.py",
        "if i - begin >= least:",
        "if i - begin > least:",
        "compress/test_tally.py::test_a_tally_of_many",
    ),
    Fault(
        "wrong comparison in sequential pooling",
        "kernels/pool.py",
        "stack[top - 1, 0] >= mean",
        "stack[top - 1, 0] <= mean",
        "test_collisions.py::test_ragged_rows_with_masses",
    ),
    Fault(
        "imminent merges what moves apart",
        "collisions/imminent.py",
        "state.y[:-1] < state.y[1:]",
        "state.y[:-1] > state.y[1:]",
        "test_collisions.py::test_ragged_rows_with_masses",
    ),
    Fault(
        "a run of ties has the velocity of its first rank",
        "generic.py",
        "alpha[runs.row] * (d - 2 * runs.start - runs.count)",
        "alpha[runs.row] * (d - 2 * runs.start - 1)",
        "test_prox_exact.py::test_agrees_with_rational_arithmetic",
    ),
    Fault(
        "off-by-one rank in the clusters' velocity",
        "generic.py",
        "v = c[heads] * (d - 2 * start - size)",
        "v = c[heads] * (d - 2 * start - size + 1)",
        "test_prox_exact.py::test_agrees_with_rational_arithmetic",
    ),
    Fault(
        "the last cluster is lost",
        "kernels/pool.py",
        "for t in range(lo, lo + k):",
        "for t in range(lo, lo + k - 1):",
        "test_collisions.py::test_ragged_rows_with_masses",
    ),
    Fault(
        "prefix sums in float32",
        "kernels/pool.py",
        "sums[at, 0] = s\n        sums[at, 1] = t",
        "sums[at, 0] = np.float32(s)\n        sums[at, 1] = 0.0",
        "test_prox_exact.py::test_sums_stay_exact_in_a_long_vector",
    ),
    Fault(
        "ties within an epsilon",
        "generic.py",
        "new[:, 1:] = x[:, 1:] != x[:, :-1]",
        "new[:, 1:] = x[:, 1:] - x[:, :-1] > 1e-6",
        "test_prox_laws.py::test_zero_coefficients_give_the_weights_back",
    ),
    Fault(
        "weights go back to the places of the first row",
        "generic.py",
        "torch.empty_like(order, dtype=per_cluster.dtype).scatter_(1, order,",
        "torch.empty_like(order, dtype=per_cluster.dtype).scatter_(1, order[:1].expand_as(order),",
        "test_prox_exact.py::test_every_slice_of_a_batch_is_its_own_vector",
    ),
    Fault(
        "the tangent bends the wrong way",
        "kernels/pool.py",
        "if _mean(i, b, sums, weights) >= _mean(b, end[b], sums, weights):",
        "if _mean(i, b, sums, weights) < _mean(b, end[b], sums, weights):",
        "test_collisions.py::test_bridges_at_every_level",
    ),
    Fault(
        "search takes the first of two touching particles",
        "collisions/search.py",
        "crosses = rightmost_collision(y, mass, start) >= half",
        "crosses = rightmost_collision(y, mass, start) > half",
        "test_collisions.py::test_ragged_rows_with_masses",
    ),
    Fault(
        "the certificate retires one percent too much",
        "kernels/cpu/hull.py",
        "(c * n - h)\n",
        "(1.01 * c * n - h)\n",
        "certified/test_exact.py::test_float32_is_the_correctly_rounded_exact_prox[at_threshold-certified]",
    ),
    Fault(
        "a cluster that begins at 0.0 takes in -0.0",
        "certified/machine.py",
        " or self._may_cut_the_zeros(bucket[1:])",
        "",
        "certified/test_exact.py::test_float32_is_the_correctly_rounded_exact_prox[signed_zeros-certified]",
    ),
    Fault(
        "imminent goes on however stuck it is",
        "collisions/auto.py",
        "while budget > 0 and rounds < 2 * longest * longest:",
        "while budget > 0:",
        "test_collisions.py::test_guarded_takes_few_rounds_when_few_particles_are_left",
    ),
    Fault(
        "rewinding the wrong way",
        "prox.py",
        "scale = 1.0 - rho",
        "scale = rho",
        "test_rewinding.py::test_rewound_l1",
    ),
    Fault(
        "l1 does not know the sign",
        "generic.py",
        "(v - beta[row] * sign)",
        "(v - beta[row])",
        "test_prox_exact.py::test_whole_of_algorithm_2_agrees_with_rational_arithmetic",
    ),
    Fault(
        "the gradient of a cluster is its sum",
        "ops.py",
        "(total / size).gather(1, ids)",
        "total.gather(1, ids)",
        "test_autograd.py::test_backward_is_the_mean_over_each_cluster",
    ),
    Fault(
        "ties get the lowest of their ranks",
        "penalty.py",
        "rank = (first + stop - d)",
        "rank = (2 * first + 1 - d)",
        "test_penalty.py::test_gradient_is_the_mean_over_active_hyperplanes",
    ),
    Fault(
        "particles that meet do not share their momentum",
        "particles.py",
        "return self.c * (self.d - self.first[b] - self.stop[b])",
        "return self.c * (self.d - 2 * self.first[b] - 1)",
        "test_particles.py::test_state_at_one_is_the_prox",
    ),
    Fault(
        "a batch is solved with its neighbour's first particle",
        "collisions/chain.py",
        "heads[self.offsets[:-1]] = True",
        "heads[self.offsets[:1]] = True",
        "test_prox_exact.py::test_every_slice_of_a_batch_is_its_own_vector",
    ),
    Fault(
        "training takes the learning rate of the first param group",
        "training/attach.py",
        "groups[id(p.tensor)], p.name)",
        "self.optimizer.param_groups[0], p.name)",
        "training/test_traps.py::test_the_learning_rate_is_that_of_the_right_group",
    ),
    Fault(
        "a step that GradScaler skips moves the weights",
        "training/optimizers.py",
        "return found is not None and bool(found)",
        "return False",
        "training/test_traps.py::test_a_skipped_step_moves_nothing",
    ),
    Fault(
        "the healed gradient is not summed",
        "training/ties.py",
        "means if self.mean else means * sizes",
        "means",
        "training/test_healing.py::test_sum_trains_the_shared_values",
    ),
    Fault(
        "a rank takes its neighbour's place",
        "distributed/shards.py",
        "sum(sizes[: wire.rank])",
        "sum(sizes[: wire.rank + 1])",
        "distributed/test_exact.py::test_fewer_weights_than_ranks",
    ),
    Fault(
        "the certified merge drops the last cluster",
        "kernels/cpu/merge.py",
        "    return top + 1\n",
        "    return top\n",
        "certified/test_exact.py::test_float32_is_the_correctly_rounded_exact_prox",
    ),
    Fault(
        "the last packed indices are lost",
        "compress/kernels.py",
        "if filled > 0:\n        out[at]",
        "if filled > 8:\n        out[at]",
        "compress/test_roundtrip.py::test_every_dtype_shape_and_content",
    ),
    Fault(
        "a codebook is read one value beyond its end",
        "compress/packing.py",
        "if most.max() >= values.size",
        "if most.max() > values.size",
        "compress/test_hostile.py::test_indices_outside_of_the_codebook",
    ),
    Fault(
        "the checksum of the first block is skipped",
        "compress/reader.py",
        "if zlib.crc32(found.data) != sums[1 + number]:",
        "if number and zlib.crc32(found.data) != sums[1 + number]:",
        "compress/test_hostile.py::test_every_flipped_byte_of_a_small_file",
    ),
    Fault(
        "the checksum of a file's header is skipped",
        "compress/reader.py",
        "if zlib.crc32(self._file.header_bytes.data) != sums[0]:",
        "if not sums.size:",
        "compress/test_hostile.py::test_every_flipped_byte_of_a_small_file",
    ),
    Fault(
        "a save that fails leaves its half behind",
        "atomic.py",
        "part.unlink(missing_ok=True)",
        "part.exists()",
        "compress/test_atomic.py::test_a_full_disk",
    ),
    Fault(
        "the first FSDP is let through",
        "training/names.py",
        "if flat and module",
        "if False and module",
        "distributed/test_training.py::test_fsdp1_is_refused",
    ),
]


def misplaced(faults: list[Fault]) -> list[str]:
    """What is wrong with the places and the tests of the faults, each as a line to print."""
    wrong = []
    for fault in faults:
        path = ROOT / "src" / "weightshare" / fault.file
        found = path.read_text().count(fault.old) if path.exists() else 0
        if found != 1:
            wrong.append(f"{fault.name!r}: its place stands {found} times in {fault.file}, not once")
        file, _, test = fault.tests.partition("::")
        source = ROOT / "tests" / file
        if not source.exists() or f"def {test.partition('[')[0]}" not in source.read_text():
            wrong.append(f"{fault.name!r}: there is no test {fault.tests}")
    return wrong


def pytest(package: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests against the package in a folder."""
    command = [sys.executable, "-m", "pytest", "-x", "--no-header", "-p", "no:cacheprovider", *options]
    # Compiled kernels are cached beside their sources, so that a copy brings along what is not changed.
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [*command, *(str(ROOT / "tests" / test) for test in tests)],
        cwd=ROOT, env={**environment, "PYTHONPATH": str(package)}, capture_output=True, text=True,
        timeout=TIMEOUT,
    )  # fmt: skip


def survives(fault: Fault, healthy: Path) -> bool:
    """Whether the tests stay green with the fault planted in a copy of the healthy package."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "src"
        shutil.copytree(healthy, package)
        path = package / "weightshare" / fault.file
        path.write_text(path.read_text().replace(fault.old, fault.new))
        try:
            run = pytest(package, [fault.tests])
        except subprocess.TimeoutExpired:  # a fault may well turn a loop into an endless one
            survived, word = False, "no end"
        else:
            if run.returncode not in (0, 1):  # neither green nor red: the run itself broke
                raise RuntimeError(f"fault {fault.name!r}: pytest could not run\n{run.stdout}\n{run.stderr}")
            survived = run.returncode == 0
            word = "SURVIVED" if survived else "caught"
    print(f"{word:8}  {time.perf_counter() - begin:5.1f} s  {fault.name}", flush=True)
    return survived


def main() -> None:
    """Plant every fault (or those whose name contains all arguments) and report."""
    wrong = misplaced(FAULTS)
    if wrong:
        sys.exit("\n".join(["tests/mutation.py has to follow the code:", *wrong]))
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in sys.argv[1:])]
    if not chosen:
        sys.exit(f"no fault has a name that contains {' and '.join(map(repr, sys.argv[1:]))}")
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", healthy)
        run = pytest(healthy, sorted({fault.tests for fault in chosen}), "-n", str(AT_ONCE))
        if run.returncode:
            sys.exit(f"the tests are red before any fault is planted\n{run.stdout}\n{run.stderr}")
        print(run.stdout.strip().splitlines()[-1], "without a fault", flush=True)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            survived = list(pool.map(lambda fault: survives(fault, healthy), chosen))
    alive = [fault.name for fault, bad in zip(chosen, survived) if bad]
    if alive:
        sys.exit(f"{len(alive)} of {len(chosen)} faults were not noticed: {'; '.join(alive)}")
    print(f"all {len(chosen)} planted faults were caught")


if __name__ == "__main__":
    main()
