"""weightshare: train neural networks whose weights become exactly tied, and make use of the ties."""

from weightshare import compress
from weightshare.clusters import Clusters
from weightshare.collisions import algorithms
from weightshare.compress.conv import CodebookConv2d
from weightshare.compress.linear import CodebookLinear
from weightshare.compress.reader import load
from weightshare.compress.replace import compact, expand
from weightshare.compress.tying import tie
from weightshare.compress.writer import save
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
    "compress",
    "expand",
    "freeze_clusters",
    "isotonic_regression",
    "load",
    "optim",
    "particles",
    "penalty",
    "prox",
    "prox_",
    "report",
    "save",
    "schedules",
    "subgradient",
    "tie",
    "unfreeze",
]
