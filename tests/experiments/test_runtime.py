"""Run times and rounds: the worst case is one, and quick measurements have what tables and figures read."""

import json

import pytest
import torch

import weightshare as ws
from weightshare.experiments import runtime, tables
from weightshare.experiments.files import write_json


@pytest.mark.parametrize("d", [8, 64, 256])
def test_the_worst_case_takes_half_as_many_rounds_as_weights(d):
    w, alpha = runtime.worst_weights(d)
    assert w.shape == (d,)
    found = runtime.rounds(runtime.chain(w, alpha), ["imminent", "search", "end"])
    assert found["imminent"] == d // 2
    assert found["search"] < 4 * d.bit_length() ** 2


def test_all_that_is_measured_gives_the_same_result():
    w, alpha = runtime.worst_weights(128)
    wanted = ws.prox(w, alpha)
    for name in runtime.ALGORITHMS:
        assert torch.allclose(ws.prox(w, alpha, algorithm=name), wanted, rtol=0, atol=1e-12), name


def test_the_destinations_are_those_of_the_particles():
    # The paper's lines 3 to 5: x sorted, v from 1 to -1, scaled by alpha.
    w = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64)
    chain = runtime.chain(w, 0.6)
    assert torch.allclose(chain.y, w.sort().values + 0.6 * torch.tensor([1.0, 1 / 3, -1 / 3, -1.0]).double())


def test_the_quick_measurements_have_what_is_read_from_them(tmp_path):
    said = []
    found = runtime.measure(quick=True, progress=said.append)
    write_json(tmp_path / "runtime.json", found)
    again = json.loads((tmp_path / "runtime.json").read_text())
    assert again["weights"] == runtime.QUICK
    assert again["seconds_per_epoch"].keys() == {"none", *runtime.ALGORITHMS}
    assert all(again["seconds_per_epoch"][n] > again["seconds_per_epoch"]["none"] for n in runtime.ALGORITHMS)
    assert {"in training, after 0 epochs", "in training, after 1 epochs", "worst case"} == {
        point["where"] for point in again["rounds"]
    }
    assert all(point["rounds"]["imminent"] >= 1 for point in again["rounds"])
    assert said
    for make in (tables.runtime, tables.complexity):
        assert make(again).markdown()


def test_the_quick_worst_case_has_a_point_for_each_size():
    from weightshare.experiments.figures import worst_case

    found = runtime.worst_case(quick=True, progress=lambda text: None)
    assert [point["weights"] for point in found["points"]] == [64, 128, 256, 512, 1024]
    assert all("auto" in point["seconds"] for point in found["points"])
    assert worst_case.figure(found) is not None
