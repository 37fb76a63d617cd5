"""Write the measured tables of docs/performance.md from results/bench-prox.json and bench-train.json.

python -m benchmarks.report
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.page import fill, table
from benchmarks.train import LIMITS

PAGE = RESULTS.parent / "docs" / "performance.md"
MISSING = "Not measured yet."
PHASES = ("plan", "histogram", "hull", "scatter", "sort and pool", "merge", "write")
TARGETS = {
    ("five clusters", "prox / numpy.sort"): "at most 0.35",
    ("five clusters", "prox / copy"): "at most 12, then 8",
    ("cluster and tail", "prox / numpy.sort"): "at most 0.7",
    ("training state", "prox / numpy.sort"): "at most 0.7",
    ("gaussian", "prox / numpy.sort"): "at most 3, then 2",
    ("five clusters", "torch.sort / prox"): "at least 50",
    ("gaussian", "torch.sort / prox"): "at least 7",
    ("five clusters", "argsort + scipy / prox"): "at least 50",
    ("gaussian", "argsort + scipy / prox"): "at least 5",
    ("five clusters", "1 thread / 2 threads"): "at least 1.6",
    ("gaussian", "1 thread / 2 threads"): "at least 1.6",
}


def prox_table(section: dict[str, Any]) -> str:
    """Milliseconds with their spread, and the ratios with their targets."""
    names = ["prox", "prox, 1 thread", "prox bf16", "copy", "numpy.sort"]
    rows = []
    for name, entry in section.items():
        cells = [entry["times"][n] for n in names]
        spread = [f"{1e3 * t['median']:.1f} ({1e3 * t['min']:.1f} to {1e3 * t['max']:.1f})" for t in cells]
        rows.append([name, f"{entry['d']:,}", f"{entry['route']}, {entry['unresolved']:.1%}", *spread])
    times = table(["input", "d", "route, unresolved", *[f"{n}, ms" for n in names]], rows)
    ratios = [
        [name, key, f"{value:.2f}", TARGETS.get((name, key), "at most 0.3" if "bf16" in key else "")]
        for name, entry in section.items()
        for key, value in entry["ratios"].items()
    ]
    return times + "\n\n" + table(["input", "ratio", "measured", "target"], ratios)


def phases_table(section: dict[str, Any]) -> str:
    """Where the time of one call goes, in milliseconds."""
    phases = list(dict.fromkeys(p for e in section.values() for p in (*PHASES, *e["seconds"])))
    rows = [
        [name, *(f"{1e3 * entry['seconds'][p]:.1f}" if p in entry["seconds"] else "-" for p in phases)]
        for name, entry in section.items()
    ]
    return table(["input", *(f"{phase}, ms" for phase in phases)], rows)


def zoo_table(section: dict[str, Any]) -> str:
    """Adversarial inputs in units of the Gaussian one; the target is at most 2."""
    rows = [[name, f"{entry['prox / gaussian']:.2f}"] for name, entry in section.items()]
    return table(["input", "time / Gaussian"], rows)


def scaling_table(section: dict[str, Any]) -> str:
    """Nanoseconds per weight."""
    rows = []
    for name, points in section.items():
        for point in points:
            cells = [point["times"].get(a) for a in ("prox", "imminent", "search")]
            shown = ["-" if t is None else f"{1e9 * t['median'] / point['d']:,.3g}" for t in cells]
            rows.append([name, f"{point['d']:,}", *shown])
    return table(["input", "d", "certified", "imminent", "search"], rows)


def growth_table(section: dict[str, Any]) -> str:
    """Time per weight at the largest d against that at 10^6."""
    rows = []
    for name, points in section.items():
        each = {point["d"]: point["times"]["prox"]["median"] / point["d"] for point in points}
        largest = max(each)
        if 10**6 in each and largest > 10**6:
            rows.append([name, f"{largest:,}", f"{each[largest] / each[10**6]:.2f}", "at most 1.5"])
    return table(["input", "d", "time per weight / that at d = 10^6", "target"], rows)


def other_table(section: dict[str, Any]) -> str:
    """Rows, small calls, hint."""
    hint = section["hint"]
    left = [f"{hint['unresolved'][case]:.2%}" for case in ("with", "without")]
    rows = [
        ["rows / one vector of the same size", f"{section['rows']['rows / vector']:.2f}", "at most 1.5"],
        ["d = 1000, microseconds over the kernel",
         f"{section['small call, microseconds over the bare kernel']:.0f}", "at most 60"],
        ["training state, time with hint / without", f"{hint['ratios']['with / without']:.2f}", ""],
        ["training state, unresolved with hint, without", ", ".join(left), ""],
    ]  # fmt: skip
    return table(["what", "measured", "target"], rows)


def memory_table(section: dict[str, Any]) -> str:
    """Extra memory; partition is allowed more than certified."""
    rows = [
        [name, f"{entry['unresolved']:.1%}", f"{entry['extra / input']:.3f}",
         "at most 3" if entry["unresolved"] > 0.5 else "at most 0.05"]
        for name, entry in section.items()
    ]  # fmt: skip
    return table(["input", "unresolved", "extra memory / input", "target"], rows)


def start_table(section: dict[str, Any]) -> str:
    """Seconds of first calls in a fresh process."""
    cold, warm = section["cold"], section["warm"]
    rows = [[name, f"{cold[name]:.2f}", f"{warm[name]:.2f}"] for name in cold]
    rows.append(
        ["all calls, without the import", f"{section['cold, all routes']:.1f} (target: about 20)", ""]
    )
    return table(["first", "empty cache, s", "full cache, s"], rows)


def isotonic_table(section: dict[str, Any]) -> str:
    """Peers in units of this package."""
    rows = [
        [name, key, f"{value:.2f}", "at least 1.5" if name != "batch" else "at least 1"]
        for name, entry in section.items()
        for key, value in entry["ratios"].items()
    ]
    return table(["input", "ratio", "measured", "target"], rows)


def train_table(content: dict[str, Any]) -> str:
    """A step with sharing against one without."""
    rows = []
    for network in ("s-fc", "transformer"):
        for state in ("random", "tied"):
            entry, limit = content[network][state], LIMITS.get(f"{network} {state}")
            ratio = f"{entry['ratio']:.2f} ({entry['ratio min']:.2f} to {entry['ratio max']:.2f})"
            rows.append([
                network, state, f"{entry['weights']:,}", f"{entry['distinct']:,}",
                f"{1e3 * entry['without']:.0f}", f"{1e3 * entry['with']:.0f}", ratio,
                f"at most {limit:.2f}" if limit else "",
                f"{entry['extra memory']:.2%}" if "extra memory" in entry else "",
            ])  # fmt: skip
    header = ["network", "weights are", "regularised", "distinct", "step without, ms", "with, ms",
              "with / without", "target", "extra memory / parameters"]  # fmt: skip
    return table(header, rows)


def algorithms_table(section: dict[str, Any]) -> str:
    """The prox of one tied layer by each algorithm, beside a training step."""
    rows = []
    for name, row in section.items():
        if isinstance(row, dict):
            paper = f"{row['paper']:g}" if row.get("paper") else ""
            rows.append([name, f"{1e3 * row['seconds']:,.0f}", f"{row['step with / without']:,.1f}", paper])
    return table(["algorithm", "prox, ms", "step with / without", "epoch with / without in the paper"], rows)


def circumstances(content: dict[str, Any]) -> str:
    """When, where and with what the sections were measured."""
    sections: dict[tuple[str, str, str], list[str]] = {}
    for name in [k for k in content if k not in ("circumstances", "measured")]:
        about = content.get("measured", {}).get(name, content["circumstances"])
        versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
        day, commit = about["date"][:10], about["commit"][:10]
        sections.setdefault((day, commit, f"{about['processor']}, {versions}"), []).append(name)
    lines = [
        f"{', '.join(names)}: {day}, commit {commit}, {rest}"
        for (day, commit, rest), names in sections.items()
    ]
    return "Measured: " + "; ".join(lines) + "."


def texts(prox: dict[str, Any] | None, train: dict[str, Any] | None) -> dict[str, str]:
    """What belongs between the markers, from the contents of the two files (None: not there)."""
    makers = {
        "prox": ("prox", prox_table), "phases": ("prox", phases_table), "zoo": ("zoo", zoo_table),
        "scaling": ("scaling", scaling_table), "growth": ("scaling", growth_table),
        "other": ("other", other_table), "memory": ("memory", memory_table), "start": ("start", start_table),
        "isotonic": ("isotonic", isotonic_table),
    }  # fmt: skip
    found = {
        marker: make(prox[section]) if prox and section in prox else MISSING
        for marker, (section, make) in makers.items()
    }
    found["when"] = circumstances(prox) if prox else MISSING
    found["when train"] = circumstances(train) if train else MISSING
    found["train"] = train_table(train) if train else MISSING
    found["algorithms"] = algorithms_table(train["algorithms"]) if train else MISSING
    return found


def stored(name: str) -> dict[str, Any] | None:
    """The content of results/<name>.json, None where there is no such file."""
    path = RESULTS / f"{name}.json"
    content: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return content


def main() -> None:
    """Fill the page."""
    fill(PAGE, texts(stored("bench-prox"), stored("bench-train")))


if __name__ == "__main__":
    main()
