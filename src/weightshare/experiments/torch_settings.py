"""PyTorch's own settings, as a config wants them and for as long as it needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weightshare.experiments.config import Config


@contextmanager
def as_configured(config: Config) -> Iterator[None]:
    """The number of threads and the precision of matrix products of a config; what was there comes back.

    >>> with as_configured(Config(recipe="torus/mlp", matmul="medium")):
    ...     torch.get_float32_matmul_precision()
    'medium'
    """
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.set_float32_matmul_precision(config.matmul)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
