"""Every example runs, and does what it shows."""

import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "needs", "holds"),
    [
        ("minimal", "sklearn", lambda accuracy: accuracy > 0.8),
        ("amp_accumulation", "sklearn", lambda bits: 1.0 < bits < 5.0),
        ("lightning_digits", "lightning", lambda distinct: 1 < distinct < 4096),
        ("hugging_face", "transformers", lambda distinct: 1 < distinct < 8000),
    ],
)
def test_example(name, needs, holds, capsys):
    pytest.importorskip(needs)
    result = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert holds(result)
    assert "distinct" in capsys.readouterr().out


def on_ranks(script, ranks, patience=400):
    """What a script prints on each rank, started with what torchrun gives to every process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    members = [
        subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {k: str(v) for k, v in (given | {"RANK": rank, "LOCAL_RANK": rank}).items()},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [member.communicate(timeout=patience)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert not any(member.returncode for member in members), said
    return said


def test_example_across_ranks():
    pytest.importorskip("sklearn")
    told, nothing = on_ranks(EXAMPLES / "fsdp2.py", 2)
    assert not nothing.strip()
    cells = dict(zip(*(line.split() for line in told.splitlines()[:2])))
    weights, distinct, exchanged = (
        int(cells[name].replace(",", "")) for name in ("weights", "distinct", "exchanged")
    )
    assert distinct < weights / 5
    assert 0 < exchanged < 0.2 * 4 * weights
    assert float(re.search(r"accuracy (.*)", told)[1]) > 0.8


def test_every_example_is_run_here():
    text = Path(__file__).read_text()
    assert all(f'"{path.stem}' in text for path in EXAMPLES.glob("*.py"))
