"""Write the measured tables of docs/compression.md from results/bench-compress.json and compression-*.json.

python -m benchmarks.compress_report
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.page import fill, table
from weightshare.experiments import points

PAGE = RESULTS.parent / "docs" / "compression.md"
IMAGES = RESULTS.parent / "docs" / "images"
_MISSING = "Not measured yet."


def coding_table(section: dict[str, Any]) -> str:
    """Sizes and speeds of each input."""
    header = [
        "weights", "number", "distinct", "coder", "bits per weight", "bytes / bound", "bytes / zstd -3",
        "encode, M/s", "times zstd -3", "decode, M/s", "times zstd",
    ]  # fmt: skip
    rows = [
        [
            name, f"{row['weights']:,}", f"{row['distinct']:,}", row["coder"], f"{row['bits']:.3f}",
            f"{row['bytes / bound']:.4f}", f"{row['bytes / zstd']:.2f}",
            f"{row['encode, M/s']:.0f}", f"{row['encode / zstd']:.2f}",
            f"{row['decode, M/s']:.0f}", f"{row['decode / zstd']:.2f}",
        ]
        for name, row in section.items()
    ]  # fmt: skip
    return table(header, rows)


def files_table(section: dict[str, Any]) -> str:
    """Whole files."""
    names = ["ws.save", "ws.load", "torch.save", "torch.load"]
    rows = [
        [name, f"{row['bytes']:,}", f"{row['plain']:,}",
         *(f"{1e-6 * row['weights'] / row['times'][n]['median']:.0f}" for n in names)]
        for name, row in section.items()
    ]  # fmt: skip
    return table(["weights", "bytes", "torch.save", *(f"{n}, M weights/s" for n in names)], rows)


def memory_table(section: dict[str, Any]) -> str:
    """Resident memory."""
    rows = [
        [name, f"{found['resident'] / 2**20:.1f}", f"{found['call'] / 2**20:.1f}"]
        for name, found in section["kinds"].items()
    ]
    side = section["side"]
    what = f"{section['layers']} layers of {side} x {side}"
    return table([what, "resident, MiB", "more during a call, MiB"], rows)


def bench(content: dict[str, Any]) -> str:
    """All of results/bench-compress.json."""
    about = content["circumstances"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [
        f"{about['date']}, commit {about['commit'][:10]}, {about['processor']}, {versions}. Two threads; "
        "medians.\n"
        "The bound is the zero-order entropy of the indices and a codebook of all distinct values; literals "
        "can stay below it. Goals: at most 1.02 times the bound, encode 20 M weights/s, decode 100 M/s."
    ]
    makers = {"coding": coding_table, "real": coding_table, "files": files_table, "memory": memory_table}
    parts += [make(content[name]) for name, make in makers.items() if name in content]
    return "\n\n".join(parts)


def evidence() -> str:
    """A plot and a table for each file of points."""
    parts = []
    for file in sorted(RESULTS.glob("compression-*.json")):
        if (IMAGES / f"{file.stem}.png").exists():
            parts.append(f"![Accuracy against bits per weight: {file.stem}](images/{file.stem}.png)")
        parts.append(points.sheet(json.loads(file.read_text())).markdown())
    return "\n\n".join(parts) or _MISSING


def texts() -> dict[str, str]:
    """What stands between the markers of the page."""
    file = RESULTS / "bench-compress.json"
    return {
        "bench": bench(json.loads(file.read_text())) if file.exists() else _MISSING,
        "evidence": evidence(),
    }


def main() -> None:
    """Fill the page."""
    fill(PAGE, texts())


if __name__ == "__main__":
    main()
