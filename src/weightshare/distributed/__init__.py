"""The exact prox of one vector whose pieces lie on several ranks (docs/training.md, "Across processes")."""

from weightshare.distributed.counts import of_each, value_counts
from weightshare.distributed.dtensor import dtensor_prox_, is_dtensor, reshard_, unshard, whole
from weightshare.distributed.shards import prox_
from weightshare.distributed.wire import DistributedInfo, metered

__all__ = [
    "DistributedInfo",
    "dtensor_prox_",
    "is_dtensor",
    "metered",
    "of_each",
    "prox_",
    "reshard_",
    "unshard",
    "value_counts",
    "whole",
]
