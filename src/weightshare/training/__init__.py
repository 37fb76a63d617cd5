"""Train with weight sharing: attach it to any optimizer, by rules, with schedules, targets and reports."""

from weightshare.training import baselines, optim, schedules
from weightshare.training.attach import WeightSharing
from weightshare.training.healing import FrozenClusters, freeze_clusters, unfreeze
from weightshare.training.report import Table, report
from weightshare.training.rules import Rule

__all__ = [
    "FrozenClusters",
    "Rule",
    "Table",
    "WeightSharing",
    "baselines",
    "freeze_clusters",
    "optim",
    "report",
    "schedules",
    "unfreeze",
]
