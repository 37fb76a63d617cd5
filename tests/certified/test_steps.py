"""The page of the proofs and the kernels name each other."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import weightshare

FOLDER = Path(weightshare.__file__).parent / "kernels" / "cpu"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "certified-prox.md"
MODULES = ("stream", "layout", "hull", "buckets", "merge", "half", "splitters", "tiles", "rows", "isotonic")


def kernels(module):
    """Name and docstring of every kernel of a module."""
    names = re.findall(r"^@kernel\ndef (\w+)", (FOLDER / f"{module}.py").read_text(), re.M)
    loaded = importlib.import_module(f"weightshare.kernels.cpu.{module}")
    return [(name, getattr(loaded, name).py_func.__doc__) for name in names]


@pytest.mark.parametrize("module", MODULES)
def test_every_kernel_names_its_step_and_the_page_names_the_kernel(module):
    rows = re.findall(r"^\| (\d) .*\| ([^|]*) \|$", PAGE.read_text(), re.M)
    named = {step: set(re.findall(r"`([\w.]+)`", cell)) for step, cell in rows}
    assert sorted(named) == list("12345678")
    assert kernels(module)
    for name, says in kernels(module):
        steps = re.match(r"Steps? (\d)(?: and (\d))?(?::| for) ", says)
        assert steps, f"{module}.{name} does not name its step"
        for step in filter(None, steps.groups()):
            if module != "isotonic":  # it has a section of its own
                assert named[step] & {module, f"{module}.{name}"}, (
                    f"step {step} does not name {module}.{name}"
                )
