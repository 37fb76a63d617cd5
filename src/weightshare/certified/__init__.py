"""The exact prox of alpha R + beta l1 with rewinding at memory speed (docs/certified-prox.md).

NumPy in, NumPy out. Every route gives the same result; routes differ in speed only.
"""

from weightshare.certified.api import prox_array, prox_rows, prox_rows_with_clusters, row_by_row
from weightshare.certified.isotonic import IsotonicResult, isotonic_array, isotonic_rows
from weightshare.certified.result import ClusterTable, Info, ProxResult

__all__ = [
    "ClusterTable",
    "Info",
    "IsotonicResult",
    "ProxResult",
    "isotonic_array",
    "isotonic_rows",
    "prox_array",
    "prox_rows",
    "prox_rows_with_clusters",
    "row_by_row",
]
