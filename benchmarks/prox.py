"""The table of the certified prox: ratios to peers, measured side by side, behind a correctness gate.

    python -m benchmarks.prox [--quick] [--only SECTION ...]

Prints a table and writes results/bench-prox.json, section by section; plots are drawn from that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import isotonic_regression as scipy_isotonic
from sklearn.isotonic import isotonic_regression as sklearn_isotonic

import weightshare as ws
from benchmarks import inputs, measure
from benchmarks.start import start_section
from weightshare.certified import isotonic_array, isotonic_rows, prox_array, prox_rows
from weightshare.certified.half import narrow
from weightshare.kernels.cpu.rows import rows_single

THREADS = 2
PROX_INPUTS = {
    "five clusters": inputs.five_clusters,
    "cluster and tail": inputs.cluster_and_tail,
    "training state": inputs.training,
    "gaussian": inputs.gaussian,
}


def scipy_prox(w: np.ndarray, alpha: float) -> np.ndarray:
    """argsort and SciPy's pool-adjacent-violators: the usual way."""
    d = w.size
    order = np.argsort(w)
    y = w[order].astype(np.float64) + alpha / (d - 1) * (d - 1 - 2 * np.arange(d))
    out = np.empty_like(w)
    out[order] = scipy_isotonic(y).x
    return out


def gate() -> None:
    """No timing of wrong results: every input, every route, against argsort and SciPy at d = 200,000."""
    for name, make in {**PROX_INPUTS, **inputs.ADVERSARIAL, "worst case": inputs.worst_case}.items():
        w, alpha = make(200_000)
        w = np.ascontiguousarray(w[:200_000])
        wanted = scipy_prox(w, alpha)
        scale = float(np.abs(w).max())
        for route in ("certified", "partition", "small"):
            off = np.abs(prox_array(w, alpha=alpha, route=route, threads=THREADS).out - wanted).max()
            if not off <= 1e-6 * scale:
                sys.exit(f"wrong result on {name}, route {route}: off by {off}")


def prox_section(d: int) -> dict[str, Any]:
    """Each input against sort, copy, torch.sort, argsort + SciPy; bf16 against the sort of the float32
    vector."""
    section = {}
    for name, make in PROX_INPUTS.items():
        section[name] = _prox_row(*make(d))
        show(name, section[name]["ratios"])
    return section


def _prox_row(w: np.ndarray, alpha: float) -> dict[str, Any]:
    """One input."""
    out, tensor = np.empty_like(w), torch.from_numpy(w)
    target, half = torch.empty_like(tensor), narrow(w, "bf16")
    half_out = np.empty_like(half)
    # Sorting works in place, so it needs a copy that is not part of its time: it is given a fresh one
    # of a pair by turns, made while the others run.
    pool = [w.copy() for _ in range(8)]
    quick: dict[str, Callable[[], Any]] = {
        "prox": lambda: prox_array(w, out, alpha=alpha, threads=THREADS),
        "prox, 1 thread": lambda: prox_array(w, out, alpha=alpha, threads=1),
        "prox bf16": lambda: prox_array(half, half_out, alpha=alpha, threads=THREADS, format="bf16"),
        "copy": lambda: target.copy_(tensor),
        "numpy.sort": lambda: pool.pop().sort(),
    }
    times = measure.timed(quick, rounds=7)
    slow: dict[str, Callable[[], Any]] = {
        "prox": quick["prox"],
        "torch.sort": lambda: torch.sort(tensor),
        "argsort + scipy": lambda: scipy_prox(w, alpha),
    }
    dear = measure.timed(slow, rounds=1, budget=5.0)
    info = prox_array(w, out, alpha=alpha, threads=THREADS).info
    return {
        "d": int(w.size),
        "alpha": alpha,
        "times": times,
        "dear": dear,
        "route": info.route,
        "unresolved": info.unresolved,
        "seconds": info.seconds,
        "ratios": {
            "prox / numpy.sort": measure.ratio(times, "prox", "numpy.sort"),
            "prox / copy": measure.ratio(times, "prox", "copy"),
            "prox bf16 / numpy.sort": measure.ratio(times, "prox bf16", "numpy.sort"),
            "1 thread / 2 threads": measure.ratio(times, "prox, 1 thread", "prox"),
            "torch.sort / prox": measure.ratio(dear, "torch.sort", "prox"),
            "argsort + scipy / prox": measure.ratio(dear, "argsort + scipy", "prox"),
        },
    }


def _call(w: np.ndarray, alpha: float, out: np.ndarray, **options: Any) -> Callable[[], Any]:
    """The prox of a vector, to be called later."""
    return lambda: prox_array(w, out, alpha=alpha, threads=THREADS, **options)


def zoo_section(d: int) -> dict[str, Any]:
    """Every adversarial input against the Gaussian one of the same size."""
    g, g_alpha = inputs.gaussian(d)
    out = np.empty_like(g)
    section = {}
    for name, make in inputs.ADVERSARIAL.items():
        times = measure.timed(
            {"prox": _call(*make(d), out), "gaussian": _call(g, g_alpha, out)}, rounds=3, budget=20.0
        )
        ratio = measure.ratio(times, "prox", "gaussian")
        section[name] = {"d": d, "times": times, "prox / gaussian": ratio}
        show(name, {"prox / gaussian": ratio})
    return section


def scaling_section(largest: int) -> dict[str, Any]:
    """Time per weight from 10^4 up, and the paper's algorithms as far as patience goes."""
    section: dict[str, Any] = {}
    for name, make in {"five clusters": inputs.five_clusters, "gaussian": inputs.gaussian,
                       "worst case": inputs.worst_case}.items():  # fmt: skip
        points = []
        d = 10_000
        given_up: set[str] = set()
        while d <= largest:
            contenders = _scaling_contenders(*make(d), given_up)
            times = {}
            for contender, call in contenders.items():  # alone: the slow ones would starve the fast of rounds
                times[contender] = measure.timed({contender: call}, rounds=5, budget=4.0)[contender]
                if times[contender]["median"] > 2.0:
                    given_up.add(contender)
            points.append({"d": d, "times": times})
            show(f"{name}, d = {d}", {k: 1e9 * v["median"] / d for k, v in times.items()}, " ns/weight")
            d *= 10
        section[name] = points
    return section


def _scaling_contenders(w: np.ndarray, alpha: float, given_up: set[str]) -> dict[str, Callable[[], Any]]:
    """The prox, and those of the paper's algorithms that were not too slow for a smaller d."""
    tensor = torch.from_numpy(w)
    calls: dict[str, Callable[[], Any]] = {"prox": _call(w, alpha, np.empty_like(w))}
    for algorithm in ("imminent", "search"):
        if algorithm not in given_up:
            calls[algorithm] = lambda a=algorithm: ws.prox(tensor, alpha, algorithm=a)
    return calls


def memory_section(d: int) -> dict[str, Any]:
    """Memory that a call takes beyond its input and its output, in units of the input."""
    section = {}
    for name, make in PROX_INPUTS.items():
        w, alpha = make(d)
        used = measure.extra_memory(_call(w, alpha, np.empty_like(w)))
        unresolved = prox_array(w, alpha=alpha, threads=THREADS).info.unresolved
        section[name] = {"d": int(w.size), "extra / input": used / w.nbytes, "unresolved": unresolved}
    show("extra memory", {name: entry["extra / input"] for name, entry in section.items()})
    return section


def other_section(d: int) -> dict[str, Any]:
    """Rows against one vector, the cost of one small call, the hint."""
    side = 4096 if d >= 4096 * 4096 else 1024
    w, alpha = inputs.gaussian(side * side)
    out, matrix = np.empty_like(w), w.reshape(side, side)
    rows = measure.timed({
        "rows": lambda: prox_rows(matrix, out.reshape(side, side), alpha=alpha, threads=THREADS),
        "vector": lambda: prox_array(w, out, alpha=alpha, threads=THREADS),
    }, rounds=5)  # fmt: skip
    small, bare = _small_call()
    section = {
        "rows": {"side": side, "times": rows, "rows / vector": measure.ratio(rows, "rows", "vector")},
        "small call, microseconds over the bare kernel": 1e6 * (small - bare),
        "hint": _hint(),
    }
    show("rows", {"rows / vector": section["rows"]["rows / vector"]})
    show("d = 1000", {"microseconds over the kernel": 1e6 * (small - bare), "all": 1e6 * small})
    show("hint", section["hint"]["ratios"])
    return section


def _small_call() -> tuple[float, float]:
    """Seconds of one call at d = 1000, and of the sort and the kernel alone."""
    w, alpha = inputs.gaussian(1000)
    tensor, out, zeros = torch.from_numpy(w), np.empty((1, 1000), np.float32), np.zeros((1, 2), np.int64)
    words = (np.arange(1000, dtype=np.uint64) << np.uint64(32)).reshape(1, -1)
    rows_single(words, alpha / 999, 0.0, 1.0, out, zeros)
    times = measure.timed({
        "call": lambda: ws.prox(tensor, alpha),
        "kernel": lambda: rows_single(words, alpha / 999, 0.0, 1.0, out, zeros),
    }, rounds=300)  # fmt: skip
    return times["call"]["median"], times["kernel"]["median"]


def _hint() -> dict[str, Any]:
    """The training state with and without the clusters of the step before."""
    w, alpha = inputs.training(0)
    out = np.empty_like(w)
    with np.load(inputs.STATE) as state:
        hint = (state["centres"], state["counts"])
    times = measure.timed({
        "without": lambda: prox_array(w, out, alpha=alpha, threads=THREADS),
        "with": lambda: prox_array(w, out, alpha=alpha, threads=THREADS, hint=hint),
    }, rounds=9)  # fmt: skip
    left = {
        "without": prox_array(w, out, alpha=alpha).info.unresolved,
        "with": prox_array(w, out, alpha=alpha, hint=hint).info.unresolved,
    }
    return {
        "times": times,
        "unresolved": left,
        "ratios": {"with / without": measure.ratio(times, "with", "without")},
    }


def _isotonic_row(y: np.ndarray) -> dict[str, Any]:
    """One vector."""
    out = np.empty_like(y)
    times = measure.timed({
        "isotonic": lambda: isotonic_array(y, out=out, threads=THREADS),
        "scipy": lambda: scipy_isotonic(y),
        "scikit-learn": lambda: sklearn_isotonic(y),
    }, rounds=5)  # fmt: skip
    if not np.allclose(out, scipy_isotonic(y).x, atol=1e-9):
        sys.exit("wrong isotonic regression")
    peers = ("scipy", "scikit-learn")
    ratios = {f"{peer} / isotonic": measure.ratio(times, peer, "isotonic") for peer in peers}
    return {"n": int(y.size), "times": times, "ratios": ratios}


def isotonic_section(n: int) -> dict[str, Any]:
    """float64 against SciPy and scikit-learn; a batch against torchsort if that is installed."""
    r, t = np.random.default_rng(0), np.arange(n) / n
    section = {}
    for name, y in {
        "random": r.standard_normal(n),
        "few blocks": 0.1 * r.standard_normal(n) - t,
        "many blocks": 0.3 * r.standard_normal(n) + np.arange(n),
    }.items():
        section[name] = _isotonic_row(y)
        show(f"isotonic, {name}", section[name]["ratios"])
    section["batch"] = _isotonic_batch(1000, n // 1000)
    return section


def _isotonic_batch(rows: int, n: int) -> dict[str, Any]:
    """A batch of rows; torchsort is measured where it can be imported, and said to be missing elsewhere."""
    y = np.random.default_rng(1).standard_normal((rows, n))
    out = np.empty_like(y)
    contenders: dict[str, Callable[[], Any]] = {
        "isotonic": lambda: isotonic_rows(y, None, out, threads=THREADS),
        "scipy, row by row": lambda: [scipy_isotonic(row) for row in y],
    }
    try:
        from torchsort.ops import isotonic_l2_cpu
    except ImportError:
        print("torchsort is not installed: that row is not measured")
    else:
        falling = torch.from_numpy(-y)  # torchsort's regression is non-increasing
        contenders["torchsort"] = lambda: isotonic_l2_cpu(falling)
        isotonic_rows(y, None, out, threads=THREADS)
        if not np.allclose(out, -isotonic_l2_cpu(falling).numpy(), atol=1e-6):
            sys.exit("torchsort disagrees")
    times = measure.timed(contenders, rounds=5)
    ratios = {f"{p} / isotonic": measure.ratio(times, p, "isotonic") for p in contenders if p != "isotonic"}
    show("isotonic, batch", ratios)
    return {"rows": rows, "n": n, "times": times, "ratios": ratios}


def show(name: str, ratios: dict[str, float], unit: str = "") -> None:
    """One line of the table."""
    print(f"{name:32s}", "  ".join(f"{key} {value:.3g}{unit}" for key, value in ratios.items()), flush=True)


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="d = 10^6 instead of 5 * 10^7")
    sections = ("prox", "zoo", "scaling", "other", "memory", "start", "isotonic")
    parser.add_argument("--only", nargs="*", choices=sections, default=sections)
    arguments = parser.parse_args()
    if not inputs.STATE.exists():
        sys.exit(f"{inputs.STATE.name} is missing: run python -m benchmarks.train_state first")
    torch.set_num_threads(THREADS)
    d = 10**6 if arguments.quick else 5 * 10**7
    gate()
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "prox": lambda: prox_section(d),
        "zoo": lambda: zoo_section(d),
        "scaling": lambda: scaling_section(10**6 if arguments.quick else 10**8),
        "other": lambda: other_section(d),
        "memory": lambda: memory_section(d),
        "start": start_section,
        "isotonic": lambda: isotonic_section(10**5 if arguments.quick else 10**7),
    }
    name = "bench-prox-quick" if arguments.quick else "bench-prox"
    for section in arguments.only:
        content = runs[section]()
        path = measure.store(name, {section: content, "circumstances": measure.circumstances()})
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
