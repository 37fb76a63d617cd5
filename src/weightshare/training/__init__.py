"""Train with weight sharing: attach it to any optimizer, by rules, with schedules, targets and reports."""

from weightshare.training import schedules
from weightshare.training.attach import WeightSharing
from weightshare.training.report import Table, report
from weightshare.training.rules import Rule

__all__ = ["Rule", "Table", "WeightSharing", "report", "schedules"]
