"""Datasets as tensors in memory: ``load("mnist")``. ``weightshare data fetch`` gets what is missing."""

from weightshare.experiments.data.dataset import Dataset
from weightshare.experiments.data.facts import FACTS
from weightshare.experiments.data.locate import default_directory, load

__all__ = ["FACTS", "Dataset", "default_directory", "load"]
