"""Files and models that shrink: distinct values once, and indices into them."""

from weightshare.compress.estimate import estimate
from weightshare.compress.reader import Reader, load
from weightshare.compress.writer import save

__all__ = ["Reader", "estimate", "load", "save"]
