"""Compilation on machines as they are: cold, warm, and where nothing can be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weightshare

CALL = """
import logging, torch
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
import weightshare as ws
print(ws.prox(torch.tensor([0.0, 1.0, 4.0]), 1.0).tolist())
"""
MORE = (
    CALL
    + "ws.isotonic_regression(torch.tensor([1.0, 0.0])); ws.isotonic_regression(torch.tensor([2.0, 1.0]))"
)


@pytest.fixture
def package(tmp_path):
    """A copy of the package without a cache, and an environment that uses it and keeps its own home."""
    source = Path(weightshare.__file__).parent
    shutil.copytree(source, tmp_path / "src" / "weightshare", ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment |= {"PYTHONPATH": str(tmp_path / "src"), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    return tmp_path, environment


def run(environment, script=CALL):
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[1.0, 1.0, 3.0]" in result.stdout
    return result.stderr


def forbid_writing(folder):
    """What a read-only install is to the compiler (permissions do not stop the superuser): a file where
    each cache folder would be."""
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        (path / "__pycache__").write_text("")


def test_a_cold_start_is_announced_and_a_warm_one_is_silent(package):
    _, environment = package
    assert "weightshare: compiling the CPU kernels" in run(environment)
    assert "compiling" not in run(environment)
    assert run(environment, MORE).count("compiling") == 1  # kernels that no call has needed before
    assert "compiling" not in run(environment, MORE)


def test_a_read_only_install_caches_in_the_users_folder(package):
    path, environment = package
    forbid_writing(path / "src" / "weightshare")
    run(environment)
    assert list((path / "home").rglob("*.nbi"))


def test_without_any_writable_folder_it_still_works(package):
    path, environment = package
    forbid_writing(path / "src" / "weightshare")
    shutil.rmtree(path / "home")
    (path / "home").write_text("")
    run(environment)
