"""What the package shows to the outside, and that its pages tell the truth."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mutation
import weightshare as ws
from weightshare.checks import COUPLINGS
from weightshare.cli.results import FigureName, TableName
from weightshare.collisions import TABLE

ROOT = Path(__file__).resolve().parent.parent


def test_public_names_exist_and_are_documented():
    for name in ws.__all__:
        assert getattr(ws, name).__doc__, name


def test_the_code_of_the_readme_runs_as_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a file
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_readme_lists_every_algorithm():
    text = (ROOT / "README.md").read_text()
    for entry in ws.algorithms():
        assert f'`"{entry.name}"`' in text


PAPER = [
    *(f"Eq. ({n})" for n in range(1, 22)),
    *(f"Table {n}" for n in range(1, 5)),
    *(f"Figure {n}" for n in range(1, 9)),
    *(f"Algorithm {n}" for n in range(1, 6)),
    *(
        "Example 2.1",
        "Lemma 3.1",
        "Lemma 3.2",
        "Theorem 3.3",
        "Proposition 3.4",
        "Proposition 4.1",
        "Theorem 4.2",
    ),
    *("A.1", "A.2", "A.3", "A.4", "A.5", "Corollary C.1", "Proposition C.2"),
]


def test_the_paper_map_tells_the_truth():
    """It has all that the paper numbers, and every function, command and test that it names exists."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    assert [name for name in PAPER if not re.search(rf"{re.escape(name)}(?!\d)", text)] == []
    rows = [
        line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| (?!paper)[^-]", line)
    ]
    assert len(rows) > 50
    for name, function, *_ in rows:
        assert function, name
    named = re.findall(r"`([^`]+)`", text)
    assert [name for name in named if not exists(name)] == []


def exists(name):
    """Whether there is what the page names: a test, a command, a value of an argument, or a function."""
    if match := re.fullmatch(r"([\w/]+\.py)(?:::(\w+))?", name):
        path = ROOT / "tests" / match[1]
        return path.exists() and (match[2] is None or f"def {match[2]}(" in path.read_text())
    if match := re.fullmatch(r"weightshare (table|figure) ([\w-]+)", name):
        return match[2] in [one.value for one in {"table": TableName, "figure": FigureName}[match[1]]]
    if match := re.fullmatch(r'(algorithm|coupling)="([\w-]+)"', name):
        return match[2] in {"algorithm": TABLE, "coupling": COUPLINGS}[match[1]]
    try:
        pkgutil.resolve_name(dotted(name))
    except (ImportError, AttributeError, ValueError):
        return False
    return True


def dotted(name):
    """``ws.prox(w, 0.1)`` as ``weightshare:prox``; what has a longer path with its module first."""
    path = re.sub(r"\(.*", "", name)
    if path.startswith("ws."):
        return f"weightshare:{path.removeprefix('ws.')}"
    module, _, function = path.rpartition(".")
    return f"{module}:{function}"


@pytest.mark.parametrize("module", ["matplotlib", "sklearn", "rich", "lightning", "transformers"])
def test_importing_brings_no_heavy_or_optional_library(module):
    code = f"import sys, torch; before = {module!r} in sys.modules; import weightshare; " + (
        f"sys.exit(not before and {module!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_citation_has_the_version_and_the_papers_address():
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", text, flags=re.MULTILINE)[1] == ws.__version__
    address = re.search(r'^  url: "(.*)"$', text, flags=re.MULTILINE)[1]
    assert address in (ROOT / "README.md").read_text()


def test_planted_faults_have_a_place_and_a_test():
    """``make mutants`` plants them; this tells at once where the code has moved on."""
    assert mutation.misplaced(mutation.FAULTS) == []


def test_typed():
    assert (Path(ws.__file__).parent / "py.typed").exists()
