"""What the package shows to the outside, and that its pages tell the truth."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import weightshare as ws

ROOT = Path(__file__).resolve().parent.parent


def test_public_names_exist_and_are_documented():
    for name in ws.__all__:
        assert getattr(ws, name).__doc__, name


def test_the_code_of_the_readme_runs_as_pasted():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_readme_lists_every_algorithm():
    text = (ROOT / "README.md").read_text()
    for entry in ws.algorithms():
        assert f'`"{entry.name}"`' in text


def test_the_paper_map_names_tests_that_exist():
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", text):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)


@pytest.mark.parametrize("module", ["matplotlib", "sklearn", "rich", "lightning", "transformers"])
def test_importing_brings_no_heavy_or_optional_library(module):
    code = f"import sys, torch; before = {module!r} in sys.modules; import weightshare; " + (
        f"sys.exit(not before and {module!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_typed():
    assert (Path(ws.__file__).parent / "py.typed").exists()
