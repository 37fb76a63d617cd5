"""All benchmarks: the training state if it is missing, the measurements, the plots, the tables."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.inputs import STATE

for module in ([] if STATE.exists() else ["benchmarks.train_state"]) + [
    "benchmarks.prox",
    "benchmarks.plots",
]:
    subprocess.run([sys.executable, "-m", module], check=True)
