"""Write the measured tables of docs/performance.md from results/bench-prox.json.

python -m benchmarks.report
"""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.measure import RESULTS

PAGE = RESULTS.parent / "docs" / "performance.md"
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


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def prox_table(section: dict[str, Any]) -> str:
    """Milliseconds with their spread, and the ratios with their targets."""
    names = ["prox", "prox, 1 thread", "prox bf16", "copy", "numpy.sort"]
    rows = []
    for name, entry in section.items():
        cells = [entry["times"][n] for n in names]
        spread = [f"{1e3 * t['median']:.1f} ({1e3 * t['min']:.1f} to {1e3 * t['max']:.1f})" for t in cells]
        rows.append([name, f"{entry['d']:,}", f"{entry['route']}, {entry['unresolved']:.1%}", *spread])
    times = _table(["input", "d", "route, unresolved", *[f"{n}, ms" for n in names]], rows)
    ratios = [
        [name, key, f"{value:.2f}", TARGETS.get((name, key), "at most 0.3" if "bf16" in key else "")]
        for name, entry in section.items()
        for key, value in entry["ratios"].items()
    ]
    return times + "\n\n" + _table(["input", "ratio", "measured", "target"], ratios)


def zoo_table(section: dict[str, Any]) -> str:
    """Adversarial inputs in units of the Gaussian one; the target is at most 2."""
    rows = [[name, f"{entry['prox / gaussian']:.2f}"] for name, entry in section.items()]
    return _table(["input", "time / Gaussian"], rows)


def scaling_table(section: dict[str, Any]) -> str:
    """Nanoseconds per weight."""
    rows = []
    for name, points in section.items():
        for point in points:
            cells = [point["times"].get(a) for a in ("prox", "imminent", "search")]
            shown = ["-" if t is None else f"{1e9 * t['median'] / point['d']:.3g}" for t in cells]
            rows.append([name, f"{point['d']:,}", *shown])
    return _table(["input", "d", "certified", "imminent", "search"], rows)


def other_table(section: dict[str, Any]) -> str:
    """Rows, small calls, memory, hint."""
    rows = [
        ["rows / one vector of the same size", f"{section['rows']['rows / vector']:.2f}", "at most 1.5"],
        ["d = 1000, microseconds over the kernel",
         f"{section['small call, microseconds over the bare kernel']:.0f}", "at most 60"],
    ]  # fmt: skip
    bounds = {"gaussian": "at most 3", "five clusters": "at most 0.05"}
    for name, value in section["extra memory in units of the input"].items():
        rows.append([f"extra memory / input, {name}", f"{value:.3f}", bounds.get(name, "")])
    rows.append(
        ["training state, with hint / without", f"{section['hint']['ratios']['with / without']:.2f}", ""]
    )
    return _table(["what", "measured", "target"], rows)


def isotonic_table(section: dict[str, Any]) -> str:
    """Peers in units of this package."""
    rows = [
        [name, key, f"{value:.2f}", "at least 1.5" if name != "batch" else "at least 1"]
        for name, entry in section.items()
        for key, value in entry["ratios"].items()
    ]
    return _table(["input", "ratio", "measured", "target"], rows)


def main() -> None:
    """Replace what stands between the markers."""
    content = json.loads((RESULTS / "bench-prox.json").read_text())
    about = content["circumstances"]
    page = PAGE.read_text()
    tables = {"prox": prox_table, "zoo": zoo_table, "scaling": scaling_table, "other": other_table,
              "isotonic": isotonic_table}  # fmt: skip
    for name, make in tables.items():
        table = make(content[name]) if name in content else "Not measured yet."
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        page = re.sub(pattern, lambda m, t=table: m[1] + "\n" + t + "\n" + m[2], page, flags=re.S)
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    when = f"{about['date']}, commit {about['commit'][:10]}, {about['processor']}, {versions}"
    page = re.sub(r"(<!-- when -->).*?(<!-- end -->)", lambda m: m[1] + when + m[2], page)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
