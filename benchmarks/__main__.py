"""All benchmarks: the training state if it is missing, the measurements, the plots, the pages' tables.

    python -m benchmarks [--quick]

``--quick`` takes small inputs, and leaves the plots and the pages as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.inputs import STATE


def steps(quick: bool) -> list[list[str]]:
    """The modules to run, in order, with their options."""
    state = [] if STATE.exists() else [["benchmarks.train_state"]]
    options = ["--quick"] if quick else []
    measured = [[f"benchmarks.{name}", *options] for name in ("prox", "train", "compress")]
    shown = [[f"benchmarks.{name}"] for name in ("plots", "report", "compress_report", "reproduction")]
    return state + measured + ([] if quick else shown)


def main() -> None:
    """Run every step; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small inputs; no plots, no pages")
    for step in steps(parser.parse_args().quick):
        print("==", " ".join(step), flush=True)
        subprocess.run([sys.executable, "-m", *step], check=True)


if __name__ == "__main__":
    main()
