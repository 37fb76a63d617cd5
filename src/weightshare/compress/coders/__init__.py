"""How indices are stored: one file for each coder, one contract, one table."""

from __future__ import annotations

from weightshare.compress.coders import ans, packed, zstd
from weightshare.compress.coders.coded import Coded, Coder, Counts

CODERS: dict[str, Coder] = {coder.name: coder for coder in (packed, ans, zstd)}

__all__ = ["CODERS", "Coded", "Coder", "Counts"]
