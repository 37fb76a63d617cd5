"""One view for all shapes: a tensor as rows of vectors, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from weightshare import checks


@dataclass(frozen=True)
class Rows:
    """A tensor seen as a matrix whose rows are the vectors to work on.

    ``dim=None``: one row that holds the whole tensor. Otherwise one row for each slice along ``dim``.

    >>> import torch
    >>> rows = Rows.of(torch.zeros(2, 3, 4), dim=1)
    >>> tuple(rows.values.shape), tuple(rows.batch_shape), tuple(rows.restore(rows.values).shape)
    ((8, 3), (2, 4), (2, 3, 4))
    """

    values: Tensor
    shape: tuple[int, ...]
    dim: int | None
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor, dim: int | None) -> Rows:
        shape = tuple(tensor.shape)
        dim = checks.dimension(dim, tensor)
        device = tensor.device
        if device.type == "mps":  # has no float64: the work is done on the CPU, the result sent back
            tensor = tensor.cpu()
        if not torch.compiler.is_compiling():
            if hasattr(tensor, "device_mesh"):
                raise TypeError(
                    "a DTensor is in pieces: use weightshare.distributed.dtensor_prox_ for its prox, "
                    "or its full_tensor()"
                )
            if is_traceable_wrapper_subclass(tensor):
                raise TypeError(
                    f"a {type(tensor).__name__} wraps other tensors and has no weights of its own: "
                    "unwrap it, or make a plain tensor of it"
                )
            tensor = tensor.resolve_neg()  # its memory holds what its entries are
        if dim is None:
            return cls(tensor.reshape(1, tensor.numel()), shape, None, device)
        count = torch.Size(shape[:dim] + shape[dim + 1 :]).numel()  # also where vectors are empty
        return cls(tensor.movedim(dim, -1).reshape(count, shape[dim]), shape, dim, device)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of what has one entry for each row."""
        return () if self.dim is None else self.shape[: self.dim] + self.shape[self.dim + 1 :]

    def restore(self, values: Tensor) -> Tensor:
        """Bring values of the form of ``self.values`` back to the tensor's own shape and device."""
        values = values.to(self.device)
        if self.dim is None or values.numel() == 0:
            return values.reshape(self.shape)
        return values.reshape(*self.batch_shape, self.shape[self.dim]).movedim(-1, self.dim)

    def restore_reduced(self, values: Tensor) -> Tensor:
        """Bring one value for each row to the batch shape, and to the tensor's device."""
        return values.to(self.device).reshape(self.batch_shape)
