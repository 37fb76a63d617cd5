"""weightshare: train neural networks whose weights become exactly tied, and make use of the ties."""

from weightshare.clusters import Clusters
from weightshare.collisions import algorithms
from weightshare.isotonic import isotonic_regression
from weightshare.particles import Trajectories, particles
from weightshare.penalty import penalty, subgradient
from weightshare.prox import prox, prox_

__version__ = "0.1.0"

__all__ = [
    "Clusters",
    "Trajectories",
    "algorithms",
    "isotonic_regression",
    "particles",
    "penalty",
    "prox",
    "prox_",
    "subgradient",
]
