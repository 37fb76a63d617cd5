"""The benchmarks' files and pages: what is stored is what is shown."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def module(monkeypatch):
    """Modules of the benchmarks, which stand beside the package, by name."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_the_page_shows_what_is_stored(module):
    report, page = module("report"), module("page")
    shown = report.PAGE.read_text()
    assert (
        page.filled(shown, report.texts(report.stored("bench-prox"), report.stored("bench-train"))) == shown
    )


@pytest.mark.parametrize("name", ["compress_report", "reproduction"])
def test_the_other_pages_show_what_is_stored(module, name):
    made = module(name)
    shown = made.PAGE.read_text()
    assert module("page").filled(shown, made.texts()) == shown


def test_without_results_the_page_says_so(module):
    texts = module("report").texts(None, None)
    assert set(texts.values()) == {module("report").MISSING}


@pytest.mark.parametrize("page", ["", "<!-- x --> no end", "<!-- x --><!-- end --> <!-- x --><!-- end -->"])
def test_a_page_without_one_place_for_a_table_is_refused(module, page):
    with pytest.raises(ValueError, match="<!-- x -->"):
        module("page").filled(page, {"x": "table"})


def test_gradients_are_measured_before_and_after_training(module, tmp_path):
    from weightshare.experiments import recipes, train

    config = recipes.recipe("digits/mlp-r", "smoke", epochs=1)
    found = module("gradients").measure(train.run(config, tmp_path, tensorboard=False))
    assert found["config"] == config.to_dict()
    for when in ("before", "after"):
        assert found[when]["weight"] > 0
        assert found[when]["gradient"] > 0
        assert 0 < found[when]["distinct"] <= 1


def test_every_section_keeps_its_circumstances(module, monkeypatch, tmp_path):
    measure = module("measure")
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    (tmp_path / "b.json").write_text(json.dumps({"old": 1, "circumstances": "before"}))
    measure.store("b", {"new": 2, "circumstances": "then"})
    path = measure.store("b", {"old": 3, "circumstances": "now"})
    assert json.loads(path.read_text()) == {
        "old": 3, "new": 2, "circumstances": "now", "measured": {"old": "now", "new": "then"},
    }  # fmt: skip
    with pytest.raises(TypeError):
        measure.store("b", {"old": object(), "circumstances": "later"})
    assert json.loads(path.read_text())["old"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_one_command_measures_and_shows_everything(module):
    run = {step[0].removeprefix("benchmarks.") for step in module("__main__").steps(quick=False)}
    sources = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    measuring = {name for name, text in sources.items() if "store(" in text and name != "measure"}
    writing = {name for name in sources if name.endswith("report")}
    assert measuring - {"train_state"} | writing | {"plots"} <= run
