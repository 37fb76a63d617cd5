"""The hints say what comes back: mypy reads this file (``make lint``), and it runs as a test."""

import torch
from torch import Tensor
from typing_extensions import assert_type

import weightshare as ws
from weightshare.certified import Info

W = torch.tensor([0.0, 0.1, 3.0])


def test_what_the_prox_returns() -> None:
    assert_type(ws.prox(W, 0.1), Tensor)
    assert_type(ws.prox(W, torch.tensor(0.1), 0, 1, step=1), Tensor)
    assert_type(ws.prox(W, 0.1, return_clusters=True), tuple[Tensor, ws.Clusters])
    assert_type(ws.prox(W, 0.1, return_info=True), tuple[Tensor, Info])
    assert_type(ws.prox(W, 0.1, return_clusters=True, return_info=True), tuple[Tensor, ws.Clusters, Info])
    assert_type(ws.prox_(W.clone(), 0.1), Tensor)


def test_a_flag_that_is_known_at_run_time_only() -> None:
    for flag in (False, True):
        assert isinstance(ws.prox(W, 0.1, return_clusters=flag), tuple) == flag
        assert isinstance(ws.prox(W, 0.1, return_info=flag), tuple) == flag
        assert isinstance(ws.isotonic_regression(W, return_clusters=flag), tuple) == flag


def test_what_the_others_return() -> None:
    assert_type(ws.isotonic_regression(W, W + 1, False), Tensor)
    assert_type(ws.isotonic_regression(W, return_clusters=True), tuple[Tensor, ws.Clusters])
    assert_type(ws.penalty(W, dim=0), Tensor)
    assert_type(ws.subgradient(W), Tensor)
    motion = ws.particles(W, torch.tensor(0.1), until=torch.tensor(2.0))
    assert_type(motion, ws.Trajectories)
    assert_type(motion.positions(1), Tensor)
    assert_type([entry.name for entry in ws.algorithms()], list[str])
    _, clusters = ws.prox(W, 0.1, return_clusters=True)
    assert_type(clusters.count, int | Tensor)
    assert_type(ws.prox(W, 0.1, hint=clusters), Tensor)
    assert_type(ws.prox(W, 0.1, hint=(clusters.values, clusters.sizes)), Tensor)
