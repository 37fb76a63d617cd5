"""Many more generated cases than a test run has time for.

    python tests/certified/fuzz.py --cases 100000 --seed 0

Every case is one input of the zoo with random alpha, beta and scale. Short vectors are compared bit for
bit with
rational arithmetic, on every route; one case in fifty is long, and the routes are compared with each other,
with other thread counts, with a permutation and with a hint. Prints a closing line; exits non-zero on
failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from certified.twin import exact_prox
from certified.zoo import ZOO, draw
from weightshare.certified import prox_array
from weightshare.certified.half import narrow, widen

NAMES = list(ZOO)
WIDE = {"wide_range", "outliers"}  # sums of float64 inputs may lose bits here: order 2^-106 of the largest


def settings_of(r: np.random.Generator) -> tuple[float, float]:
    """beta and scale; the plain prox half of the time."""
    if r.random() < 0.5:
        return 0.0, 1.0
    return float(r.choice([0.0, 0.01, 0.1, 1.0])), float(r.choice([0.0, 0.1, 0.5, 1.0, 0.9]))


def short_case(seed: int) -> str | None:
    """All routes and dtypes on a short vector against rational arithmetic; what went wrong, or None."""
    r = np.random.default_rng(seed)
    name = NAMES[seed % len(NAMES)]
    w, alpha = draw(name, seed, int(r.integers(2, 40)))
    beta, scale = settings_of(r)
    exact = exact_prox(w, alpha, beta, scale)
    common = {"alpha": alpha, "beta": beta, "scale": scale, "ids": True, "threads": 1 + seed % 3}
    for route in ("small", "certified", "partition"):
        result = prox_array(w, route=route, **common)
        if not (
            np.array_equal(result.out, exact.singles)
            and result.clusters.starts.tolist() == exact.starts
            and np.array_equal(result.clusters.ids, exact.ids)
            and result.zeros == exact.zeros
        ):
            return f"{name} seed {seed} route {route}: {common}"
    double = prox_array(w.astype(np.float64), **common).out
    if name not in WIDE and not (np.abs(double - exact.values) <= np.spacing(np.abs(exact.values))).all():
        return f"{name} seed {seed} float64: {common}"
    form = ("bf16", "fp16")[seed % 2]
    bits = narrow(w, form)
    if np.isfinite(widen(bits, form)).all():
        lut = prox_array(bits, route="lut", format=form, **common).out
        wanted = narrow(exact_prox(widen(bits, form), alpha, beta, scale).singles, form)
        if not np.array_equal(widen(lut, form), widen(wanted, form)):
            return f"{name} seed {seed} {form}: {common}"
    return None


def long_case(seed: int) -> str | None:
    """Routes, threads, order and hint on a long vector."""
    r = np.random.default_rng(seed)
    name = NAMES[(seed // 50) % len(NAMES)]
    w, alpha = draw(name, seed, int(10.0 ** r.uniform(2.5, 5)))
    beta, scale = settings_of(r)
    common = {"alpha": alpha, "beta": beta, "scale": scale}
    small = prox_array(w, route="small", clusters=True, **common)
    order = r.permutation(w.size)
    hint = (r.standard_normal(20), r.integers(1, w.size + 1, 20))
    for route in ("certified", "partition"):
        for threads in (1, 3):
            one = prox_array(w, route=route, threads=threads, clusters=True, **common)
            two = prox_array(w[order], route=route, threads=threads, hint=hint, **common)
            if not (
                np.array_equal(one.out.view(np.uint32), small.out.view(np.uint32))
                and np.array_equal(one.clusters.starts, small.clusters.starts)
                and np.array_equal(two.out.view(np.uint32), small.out[order].view(np.uint32))
            ):
                return f"{name} seed {seed} long, route {route}, threads {threads}: {common}"
    return None


def main() -> int:
    """Run the cases; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin, failures = time.perf_counter(), 0
    for case in range(arguments.cases):
        seed = arguments.seed + case
        wrong = long_case(seed) if case % 50 == 49 else short_case(seed)
        if wrong is not None:
            failures += 1
            print("FAILED", wrong, flush=True)
    took = time.perf_counter() - begin
    print(f"fuzz: {arguments.cases} cases, {failures} failed, seed {arguments.seed}, {took:.0f} s")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
