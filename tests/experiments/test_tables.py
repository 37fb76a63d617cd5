"""Tables: every number at its place, ours beside the paper's, nothing missing without a word."""

import json

import pytest

import synthetic_runs
from weightshare.experiments import collect, published, tables
from weightshare.experiments.sheet import Number, Sheet


@pytest.fixture
def torus(tmp_path):
    root = tmp_path / "runs"
    for seed, accuracy in enumerate((0.9, 0.92, 0.94)):
        synthetic_runs.make(root, "torus/mlp", seed, accuracy)
    synthetic_runs.make(root, "torus/cnn", 0, 0.98)
    return root


def row(sheet, label):
    (found,) = [cells for cells, raw in zip(sheet.cells(), sheet.rows) if raw[0] == label]
    return dict(zip(map(str, range(len(found))), found))


def test_mean_and_deviation_over_seeds_beside_the_papers(torus):
    sheet = tables.torus(collect.read([torus]))
    found = row(sheet, "MLP")
    assert found["1"] == "92.00 ± 2.00"
    assert found["2"] == "92.40"
    assert found["3"] == "40.00 ± 0.00"
    assert found["4"] == "44.50"
    assert found["7"] == "3"
    assert row(sheet, "CNN")["1"] == "98.00"  # one seed: nothing about a deviation


def test_a_row_without_runs_says_so_and_how_to_make_them(torus):
    sheet = tables.torus(collect.read([torus]))
    assert row(sheet, "MLP + R")["7"] == "not run"
    assert row(sheet, "MLP + R")["2"] == "95.04"
    assert [cells[0] for cells in sheet.rows] == [p.label for p in published.TORUS]
    notes = "\n".join(sheet.notes)
    assert "weightshare train torus/mlp-r --preset smoke --seeds 0,1,2" in notes
    assert "weightshare train torus/cnn --preset smoke --set variant=no-symmetry" in notes


def test_other_settings_never_mix_into_a_row(torus):
    synthetic_runs.make(torus, "torus/mlp", 7, 0.1, lr=0.5)
    synthetic_runs.make(torus, "torus/mlp", 8, 0.1, train_share=0.2)
    synthetic_runs.make(torus, "torus/mlp", 9, 0.1, holdout=0.2)
    sheet = tables.torus(collect.read([torus]))
    assert row(sheet, "MLP")["1"] == "92.00 ± 2.00"
    assert "MLP: 1 more, with other settings, left out." in sheet.notes
    assert row(tables.torus(collect.read([torus]), share=0.2), "MLP")["1"] == "10.00"


def test_the_recipes_own_settings_win_over_more_seeds(tmp_path):
    synthetic_runs.make(tmp_path, "torus/mlp", 0, 0.9)
    for seed in range(3):
        synthetic_runs.make(tmp_path, "torus/mlp", seed, 0.5, lr=0.5)
    assert row(tables.torus(collect.read([tmp_path])), "MLP")["1"] == "90.00"


def test_runs_of_other_settings_alone_are_shown_and_named(tmp_path):
    synthetic_runs.make(tmp_path, "torus/mlp", 0, 0.5, lr=0.5)
    sheet = tables.torus(collect.read([tmp_path]))
    assert row(sheet, "MLP")["1"] == "50.00"
    assert "MLP: made with other settings than the recipe has now." in sheet.notes


def test_variants_that_the_paper_does_not_show_get_rows_of_their_own(torus):
    synthetic_runs.make(torus, "torus/mlp", 0, 0.91, variant="no-locality")
    assert row(tables.torus(collect.read([torus])), "MLP (-locality)")["1"] == "91.00"


def test_several_presets_need_a_choice(torus):
    synthetic_runs.make(torus, "torus/mlp", 0, 0.7, preset="cpu", width=1)
    with pytest.raises(ValueError, match="runs of the presets cpu, smoke; choose one with --preset"):
        tables.torus(collect.read([torus]))
    assert row(tables.torus(collect.read([torus]), "cpu"), "MLP")["1"] == "70.00"


def test_unfinished_runs_do_not_count(torus):
    synthetic_runs.make(torus, "torus/mlp-r", 0, 0.95, finished=False)
    assert row(tables.torus(collect.read([torus])), "MLP + R")["7"] == "not run"


def test_cifar10_shows_both_measures_of_sharing(tmp_path):
    synthetic_runs.make(tmp_path, "cifar10/r", 0, 0.7)
    sheet = tables.cifar10(collect.read([tmp_path]))
    found = row(sheet, "R")
    assert (found["1"], found["2"]) == ("70.00", "73.50")
    assert (found["5"], found["6"], found["7"]) == ("90.00", "99.96", "80.00")
    assert found["8"] == "0.25"
    assert row(sheet, "CNN")["9"] == "not run"


def test_stored_summaries_come_back(torus, tmp_path):
    records = collect.read([torus])
    file = tmp_path / "results" / "torus-smoke.json"
    collect.store(records, file)
    again = collect.read([file])
    assert tables.torus(again) == tables.torus(records)
    assert tables.torus(collect.read([torus, file])) == tables.torus(records)  # no run counts twice
    stored = json.loads(file.read_text())["runs"]
    assert len(stored) == 4
    assert all(set(run) == {"config", "circumstances", "metrics"} for run in stored)
    before = file.read_bytes()
    collect.store(again[::-1], file)
    assert file.read_bytes() == before


def test_of_a_run_that_was_made_twice_the_later_counts(tmp_path):
    synthetic_runs.make(tmp_path / "a", "torus/mlp", 0, 0.5, date="2024-05-02")
    synthetic_runs.make(tmp_path / "b", "torus/mlp", 0, 0.9, date="2024-05-01")
    (record,) = collect.read([tmp_path])
    assert record.metrics["test_accuracy"] == 0.5


def test_what_cannot_be_stored_or_read(tmp_path):
    with pytest.raises(ValueError, match="no finished runs to store"):
        collect.store([], tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()
    (tmp_path / "y.json").write_text("[]")
    with pytest.raises(ValueError, match=r"y\.json does not hold summaries of runs"):
        collect.read([tmp_path / "y.json"])


def test_without_a_measurement_the_measured_tables_say_how_to_make_it():
    assert "weightshare table runtime --measure" in tables.runtime(None).notes[0]
    assert "weightshare table complexity --measure" in tables.complexity(None).notes[0]
    assert "1,800" in tables.runtime(None).markdown()
    assert "~500" in tables.complexity(None).markdown()


@pytest.fixture
def sheet():
    stat = collect.Stat.of([0.5, 0.7])
    rows = [["a & b_1 + l1", Number(stat, 100), "1,000"], ["c", None, Number(collect.Stat.of([1234.5]))]]
    return Sheet("50 % of β", ["Model", "acc. %", "n"], rows, ["See `torus/mlp-l1`."])


def test_markdown(sheet):
    assert sheet.render("markdown").splitlines()[2:6] == [
        "| Model | acc. % | n |",
        "|---|---:|---:|",
        "| a & b_1 + l1 | 60.00 ± 14.14 | 1,000 |",
        "| c | - | 1,234.50 |",
    ]


def test_csv_has_plain_numbers_and_deviations_in_columns_of_their_own(sheet):
    assert sheet.render("csv").splitlines() == [
        "Model,acc. %,acc. % std,n",
        'a & b_1 + l1,60.00,14.14,"1,000"',
        "c,,,1234.50",
    ]


def test_latex_is_escaped(sheet):
    text = sheet.render("latex")
    assert r"a \& b\_1 + $\ell_1$ & 60.00 $\pm$ 14.14 & 1,000 \\" in text
    assert r"\caption{50 \% of $\beta$}" in text
    assert "torus/mlp-l1." in text
    assert text.count("{") == text.count("}")


def test_unknown_format(sheet):
    with pytest.raises(ValueError, match="'latex'"):
        sheet.render("html")
