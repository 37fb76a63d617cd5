"""The contract of the coders: numbers below k into a few arrays, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weightshare.compress.packing import Bits, Indices

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Coded:
    """What a coder made of indices: numbers that go into the description, arrays that become tensors."""

    settings: dict[str, int]
    parts: dict[str, NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


class Coder(Protocol):
    """A way to store indices. ``counts`` says how often each occurs; ``values`` is what they stand for."""

    name: str
    PARTS: dict[str, str]
    """Each array and its dtype in safetensors."""
    SETTINGS: frozenset[str]

    def cost(self, counts: Counts) -> float:
        """Bytes that it will take, about; infinite where it cannot, NaN where only trying tells."""

    def encode(self, indices: Indices, counts: Counts) -> Coded:
        """Store the indices."""

    def check(self, coded: Coded, count: int, distinct: int) -> None:
        """Raise ``ValueError`` unless ``count`` indices below ``distinct`` can be in there."""

    def decode(self, coded: Coded, values: Bits, count: int, start: int, out: Bits) -> None:
        """``out[i] = values[index start + i]`` out of ``count``; ``ValueError`` for what is broken.

        Has to be memory-safe for everything that :meth:`check` let pass.
        """
