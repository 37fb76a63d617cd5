"""weightshare: train neural networks whose weights become exactly tied, and make use of the ties."""

from weightshare.clusters import Clusters
from weightshare.collisions import algorithms
from weightshare.isotonic import isotonic_regression
from weightshare.particles import Trajectories, particles
from weightshare.penalty import penalty, subgradient
from weightshare.prox import prox, prox_
from weightshare.training import (
    Rule,
    WeightSharing,
    baselines,
    freeze_clusters,
    optim,
    report,
    schedules,
    unfreeze,
)

__version__ = "0.1.0"

__all__ = [
    "Clusters",
    "Rule",
    "Trajectories",
    "WeightSharing",
    "algorithms",
    "baselines",
    "freeze_clusters",
    "isotonic_regression",
    "optim",
    "particles",
    "penalty",
    "prox",
    "prox_",
    "report",
    "schedules",
    "subgradient",
    "unfreeze",
]
