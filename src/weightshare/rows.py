"""One view for all shapes: a tensor as rows of vectors, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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

    @classmethod
    def of(cls, tensor: Tensor, dim: int | None) -> Rows:
        shape = tuple(tensor.shape)
        dim = checks.dimension(dim, tensor)
        if dim is None:
            return cls(tensor.reshape(1, -1), shape, None)
        length = shape[dim]
        count = tensor.numel() // length if length else 0
        return cls(tensor.movedim(dim, -1).reshape(count, length), shape, dim)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of what has one entry for each row."""
        return () if self.dim is None else self.shape[: self.dim] + self.shape[self.dim + 1 :]

    def restore(self, values: Tensor) -> Tensor:
        """Bring values of the form of ``self.values`` back to the tensor's own shape."""
        if self.dim is None:
            return values.reshape(self.shape)
        batch = self.batch_shape
        if values.numel() == 0:
            return values.reshape(self.shape)
        return values.reshape(*batch, self.shape[self.dim]).movedim(-1, self.dim)

    def restore_reduced(self, values: Tensor) -> Tensor:
        """Bring one value for each row to the batch shape."""
        if self.dim is not None and self.shape[self.dim] == 0:
            return values.new_zeros(self.batch_shape)
        return values.reshape(self.batch_shape)
