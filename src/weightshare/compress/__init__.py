"""Files and models that shrink: distinct values once, and indices into them."""

from weightshare.compress.estimate import estimate
from weightshare.compress.export import export_onnx
from weightshare.compress.interchange import from_torchao, to_torchao
from weightshare.compress.reader import Reader, load
from weightshare.compress.writer import save

__all__ = ["Reader", "estimate", "export_onnx", "from_torchao", "load", "save", "to_torchao"]
