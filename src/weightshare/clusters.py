"""Clusters: the contiguous groups of a sorted vector that move as one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from weightshare import checks
from weightshare.rows import Rows


@dataclass(frozen=True, eq=False, repr=False)
class Clusters:
    """A partition of a vector into runs of its sorted order; of several vectors, where batched.

    The clusters of all rows stand one after another: cluster ``c`` of row ``r`` is entry
    ``offsets[r] + c`` of ``starts``, ``sizes`` and whatever :meth:`means` returns.

    >>> import torch, weightshare as ws
    >>> w = torch.tensor([0.0, 5.0, 0.1, 5.2, 9.0])
    >>> p, clusters = ws.prox(w, alpha=0.4, return_clusters=True)
    >>> clusters
    Clusters(5 weights in 3 clusters, sizes 1 to 2, 1 of a single weight)
    >>> clusters.ids
    tensor([0, 1, 0, 1, 2])
    >>> clusters.values
    tensor([0.3500, 5.0000, 8.6000])
    >>> torch.equal(clusters.expand(clusters.values), p)
    True
    """

    starts: Tensor
    """Where each cluster begins in its row's sorted order (int64)."""
    offsets: Tensor
    """Where each row's clusters begin in ``starts`` (int64, one more entry than rows)."""
    shape: tuple[int, ...]
    """Shape of the tensor that was clustered."""
    dim: int | None
    """The dimension along which its vectors lie; ``None``: it is one vector."""
    values: Tensor
    """The value that each cluster's weights share in the result."""
    _ids: Tensor = field(kw_only=True)

    @classmethod
    def from_ids(cls, ids: Tensor, out: Tensor, like: Rows, merged: Tensor | None = None) -> Clusters:
        """Build from row-wise cluster numbers, ascending with the values, and the rows of the result.

        Neighbouring clusters whose members are all marked in ``merged`` become one.
        """
        rows, length = ids.shape
        sizes = ids.new_zeros(rows, length).scatter_add_(1, ids, torch.ones_like(ids))
        used = sizes > 0
        if merged is not None:
            mark = torch.zeros_like(used).scatter_(1, ids, merged)
            joined = torch.zeros_like(used)
            joined[:, 1:] = mark[:, 1:] & mark[:, :-1]
            ids = ids - joined.cumsum(1).gather(1, ids)
            used &= ~joined
        starts = sizes.cumsum(1) - sizes
        offsets = ids.new_zeros(rows + 1)
        offsets[1:] = used.sum(1).cumsum(0)
        values = out.new_zeros(int(offsets[-1]))
        values[(ids + offsets[:-1, None]).reshape(-1)] = out.detach().reshape(-1)
        return cls(starts[used], offsets, like.shape, like.dim, values, _ids=ids)

    @classmethod
    def from_table(cls, starts: Tensor, values: Tensor, ids: Tensor, like: Rows, merged: Tensor) -> Clusters:
        """Build for one vector from the first place and the value of each cluster, and the ids.

        Neighbouring clusters that are both marked in ``merged`` become one.
        """
        kept = torch.ones_like(merged)
        kept[1:] = ~(merged[1:] & merged[:-1])
        if not bool(kept.all()):
            ids = (kept.cumsum(0) - 1)[ids]
        offsets = torch.tensor([0, int(kept.sum())], device=ids.device)
        return cls(starts[kept], offsets, like.shape, like.dim, values[kept], _ids=ids)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of vectors; ``()`` for a single one."""
        return () if self.dim is None else self.shape[: self.dim] + self.shape[self.dim + 1 :]

    @property
    def length(self) -> int:
        """Number of weights in each vector."""
        return int(torch.Size(self.shape).numel()) if self.dim is None else self.shape[self.dim]

    @property
    def count(self) -> int | Tensor:
        """Number of clusters: an int, or an int64 tensor of the batch's shape."""
        counts = self.offsets.diff()
        return int(counts[0]) if self.dim is None else counts.reshape(self.batch_shape)

    def __len__(self) -> int:
        """Number of clusters in all rows together."""
        return self.starts.numel()

    @property
    def rows(self) -> Tensor:
        """Row of each cluster."""
        counts = self.offsets.diff()
        return torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)

    @property
    def sizes(self) -> Tensor:
        """Number of weights in each cluster."""
        stops = torch.empty_like(self.starts)
        stops[:-1] = self.starts[1:]
        last = self.offsets[1:][self.offsets.diff() > 0] - 1
        stops[last] = self.length
        return stops - self.starts

    @property
    def ids(self) -> Tensor:
        """Cluster of each weight within its row, in the tensor's own shape and order."""
        return self._like().restore(self._ids)

    def means(self, values: Tensor) -> Tensor:
        """Mean of ``values`` (shaped like the clustered tensor) over each cluster.

        Deviations from one member are averaged, so that equal values have exactly themselves as mean.
        """
        flat = self._flat(values, "values").to(torch.float64).reshape(-1)
        place = self._place()
        lowest = flat.new_zeros(len(self)).scatter_reduce_(0, place, flat, "amin", include_self=False)
        shift = flat.new_zeros(len(self)).index_add_(0, place, flat - lowest[place])
        return (lowest + shift / self.sizes).to(values.dtype)

    def expand(self, per_cluster: Tensor) -> Tensor:
        """Give every weight its cluster's entry of ``per_cluster``; the inverse of :meth:`means`."""
        if not isinstance(per_cluster, Tensor):
            raise TypeError(f"per_cluster must be a torch.Tensor, got {type(per_cluster).__name__}")
        if tuple(per_cluster.shape) != (len(self),):
            raise ValueError(
                f"per_cluster must have shape ({len(self)},), one entry for each cluster, "
                f"got {tuple(per_cluster.shape)}"
            )
        return self._like().restore(per_cluster[self._place()].view(self._ids.shape))

    def row(self, row: int) -> Clusters:
        """The clusters of one row of a batch (rows numbered in order of the flattened batch)."""
        rows, row = self.offsets.numel() - 1, checks.integer("row", row)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} is out of range for clusters of {rows} rows")
        row %= rows
        lo, hi = self.offsets[row], self.offsets[row + 1]
        offsets = torch.stack([torch.zeros_like(lo), hi - lo])
        ids = self._ids[row : row + 1]
        return Clusters(self.starts[lo:hi], offsets, (self.length,), None, self.values[lo:hi], _ids=ids)

    def flipped_members(self) -> Clusters:
        """The same clusters for a tensor whose vectors run the other way."""
        return replace(self, _ids=self._ids.flip(-1))

    def _like(self) -> Rows:
        return Rows(self._ids, self.shape, self.dim, self._ids.device)

    def _flat(self, values: Tensor, name: str) -> Tensor:
        checks.float_tensor(name, values)
        if tuple(values.shape) != self.shape:
            raise ValueError(f"{name} must have shape {self.shape}, got {tuple(values.shape)}")
        return Rows.of(values, self.dim).values

    def _place(self) -> Tensor:
        return (self._ids + self.offsets[:-1, None]).reshape(-1)

    def __repr__(self) -> str:
        rows, total = self.offsets.numel() - 1, len(self)
        what = _counted(self.length, "weight")
        if self.dim is not None:
            what = f"{_counted(rows, 'row')} of {what}"
        text = f"Clusters({what} in {_counted(total, 'cluster')}"
        if total == 0:
            return text + ")"
        if rows > 1:
            counts = self.offsets.diff()
            fewest, most = int(counts.min()), int(counts.max())
            text += f", {fewest:,} to {most:,} a row" if fewest < most else f", {most:,} a row"
        sizes = self.sizes
        low, high = int(sizes.min()), int(sizes.max())
        text += f", sizes {low:,} to {high:,}" if low < high else f", each of size {low:,}"
        single = int((sizes == 1).sum())
        if single and low < high:
            text += f", {single:,} of a single weight"
        return text + ")"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
