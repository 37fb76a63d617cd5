"""The exact prox of one vector whose pieces lie on several ranks (docs/distributed.md)."""

from weightshare.distributed.dtensor import dtensor_prox_, is_dtensor, reshard_, unshard, whole
from weightshare.distributed.shards import prox_
from weightshare.distributed.wire import DistributedInfo, metered

__all__ = [
    "DistributedInfo",
    "dtensor_prox_",
    "is_dtensor",
    "metered",
    "prox_",
    "reshard_",
    "unshard",
    "whole",
]
