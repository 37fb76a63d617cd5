"""weightshare: train neural networks whose weights become exactly tied, and make use of the ties."""

from weightshare.clusters import Clusters
from weightshare.collisions import algorithms
from weightshare.compress.conv import CodebookConv2d
from weightshare.compress.linear import CodebookLinear
from weightshare.compress.replace import compact, expand
from weightshare.compress.tying import tie
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
    "CodebookConv2d",
    "CodebookLinear",
    "Rule",
    "Trajectories",
    "WeightSharing",
    "algorithms",
    "baselines",
    "compact",
    "expand",
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
    "tie",
    "unfreeze",
]
