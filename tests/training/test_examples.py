"""Every example runs, and does what it shows."""

import runpy
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
