"""The sticky particles themselves: the ODE of the paper (Eq. 10), followed from collision to collision."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightshare import checks
from weightshare.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """Straight lines between collisions: the whole motion of the particles from t = 0 to ``until``.

    A *body* is a particle or what particles became by sticking together. Body b lives from ``birth[b]``
    to ``death[b]`` (inf: it is still there at the end), starts at ``origin[b]``, moves with
    ``velocity[b]`` and holds the sorted particles ``first[b]:stop[b]``. ``parent[b]`` is the body that it
    became part of (-1: none). ``order`` sorts the weights, and ``shape`` is theirs.
    """

    birth: Tensor
    death: Tensor
    origin: Tensor
    velocity: Tensor
    first: Tensor
    stop: Tensor
    parent: Tensor
    order: Tensor
    shape: tuple[int, ...]
    until: float

    @property
    def collision_times(self) -> Tensor:
        """When bodies met, ascending; one entry for each body that was formed by a collision."""
        return self.birth[self._formed()].sort().values

    def _formed(self) -> Tensor:
        """Mask of the bodies that a collision formed: those that are somebody's parent."""
        mask = torch.zeros_like(self.birth, dtype=torch.bool)
        mask[self.parent[self.parent >= 0]] = True
        return mask

    def __repr__(self) -> str:
        counts = {"weight": self.order.numel(), "collision": int(self._formed().sum())}
        told = ", ".join(f"{count:,} {name}{'s' * (count != 1)}" for name, count in counts.items())
        return f"Trajectories({told} up to t = {self.until:g})"

    def positions(self, time: float | Tensor) -> Tensor:
        """Where the particles are at ``time``, in the shape of the weights (float64).

        At time t, which must be in the span that was simulated, this is the prox of ``t * alpha R``.
        """
        time = checks.number("time", time, upper=self.until)
        alive = (self.birth <= time) & (time < self.death)
        place = self.origin + self.velocity * (time - self.birth)
        by_first = torch.argsort(self.first[alive])
        sizes = (self.stop - self.first)[alive][by_first]
        sorted_ = place[alive][by_first].repeat_interleave(sizes)
        return torch.empty_like(sorted_).scatter_(0, self.order, sorted_).reshape(self.shape)

    def path(self, weight: int) -> Tensor:
        """Corners (time, position) of the path of one weight, given by its place in the flattened tensor.

        >>> import torch, weightshare as ws
        >>> ws.particles(torch.tensor([4.0, 0.0, 1.0]), alpha=2.0).path(1)
        tensor([[0.0000, 0.0000],
                [0.5000, 1.0000],
                [1.0000, 1.5000]], dtype=torch.float64)
        """
        weight = checks.integer("weight", weight)
        if not 0 <= weight < self.order.numel():
            raise IndexError(f"weight must be one of 0 to {self.order.numel() - 1}, got {weight}")
        place = int((self.order == weight).nonzero())
        start = ~self._formed() & (self.first <= place) & (place < self.stop)
        body = int(start.nonzero())
        corners = []
        while body >= 0:
            corners.append((float(self.birth[body]), float(self.origin[body])))
            last, body = body, int(self.parent[body])
        end = self.origin[last] + self.velocity[last] * (self.until - self.birth[last])
        return torch.tensor([*corners, (self.until, float(end))], dtype=torch.float64, device="cpu")

    def plot(self, axes: Axes | None = None, **style: Any) -> Axes:
        """Draw time against position: lines that meet and stick. Needs matplotlib (extra ``plot``)."""
        try:
            from matplotlib import pyplot
            from matplotlib.collections import LineCollection
        except ImportError as error:
            raise ImportError("plotting needs matplotlib: pip install 'weightshare[plot]'") from error
        if axes is None:
            _, axes = pyplot.subplots()
        end = self.death.clamp(max=self.until)
        there = self.origin + self.velocity * (end - self.birth)
        lines = torch.stack([torch.stack([self.birth, self.origin], 1), torch.stack([end, there], 1)], 1)
        mass = (self.stop - self.first).to(torch.float64)
        style.setdefault("linewidths", (0.6 + 0.8 * mass.log2()).numpy())
        style.setdefault("capstyle", "round")
        axes.add_collection(LineCollection(lines.tolist(), **style))
        axes.autoscale()
        axes.set_xlabel("time")
        axes.set_ylabel("weight")
        return axes


def particles(w: Tensor, alpha: float | Tensor, *, until: float | Tensor = 1.0) -> Trajectories:
    """Follow ``dw/dt = -`` the mean active gradient of ``alpha R`` (Eq. 10) from ``w``, event by event.

    Each weight is a sticky particle of mass 1 with the velocity of Algorithm 2, line 4. Between collisions
    particles move in straight lines, so the motion is known exactly once its collisions are. The state at
    time 1 is ``prox(w, alpha)`` (Theorem 3.3). O(d log d) in Python: for insight and plots, not for training.

    >>> import torch, weightshare as ws
    >>> motion = ws.particles(torch.tensor([0.0, 1.0, 4.0]), alpha=1.0)
    >>> motion.collision_times
    tensor([1.], dtype=torch.float64)
    >>> motion.positions(1.0)
    tensor([1., 1., 3.], dtype=torch.float64)
    """
    checks.float_tensor("w", w)
    if w.is_meta or checks.transformed(w) or checks.fake(w):
        raise ValueError(
            "particles needs concrete numbers: call it outside of vmap, and not on meta or fake tensors"
        )
    checks.finite("w", w)
    alpha, until = checks.number("alpha", alpha), checks.number("until", until)
    x, order = Rows.of(w.detach(), None).values[0].to("cpu", torch.float64).sort()
    return _Simulation(x.tolist(), alpha, until).run(order, tuple(w.shape))


class _Simulation:
    """Bodies in a doubly linked list, and a heap of the collisions that their neighbours head for."""

    def __init__(self, x: list[float], alpha: float, until: float) -> None:
        self.until = until
        self.d = len(x)
        self.c = alpha / max(self.d - 1, 1)
        self.birth: list[float] = []
        self.death: list[float] = []
        self.origin: list[float] = []
        self.first: list[int] = []
        self.stop: list[int] = []
        self.parent: list[int] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.heap: list[tuple[float, int, int]] = []
        i = 0
        while i < self.d:
            j = i + 1
            while j < self.d and x[j] == x[i]:
                j += 1
            b = self._add(0.0, x[i], i, j)
            self.left[b], self.right[b] = b - 1, b + 1
            i = j
        if self.right:
            self.right[-1] = -1

    def _add(self, birth: float, origin: float, first: int, stop: int) -> int:
        self.birth.append(birth)
        self.death.append(math.inf)
        self.origin.append(origin)
        self.first.append(first)
        self.stop.append(stop)
        for links in (self.parent, self.left, self.right):
            links.append(-1)
        return len(self.birth) - 1

    def velocity(self, b: int) -> float:
        """Momentum over mass: the mean of Algorithm 2's line 4 over the particles ``first:stop``."""
        return self.c * (self.d - self.first[b] - self.stop[b])

    def _position(self, b: int, time: float) -> float:
        return self.origin[b] + self.velocity(b) * (time - self.birth[b])

    def _expect(self, a: int, b: int, now: float) -> None:
        """File the collision of neighbours a, b. Their closing speed is c (mass_a + mass_b)."""
        closing = self.c * (self.stop[b] - self.first[a])
        if closing <= 0:
            return
        gap = self._position(b, now) - self._position(a, now)
        time = now + max(gap, 0.0) / closing
        if time <= self.until:
            heapq.heappush(self.heap, (time, a, b))

    def run(self, order: Tensor, shape: tuple[int, ...]) -> Trajectories:
        """Take collisions off the heap until none is left before ``until``."""
        for a in range(len(self.birth) - 1):
            self._expect(a, a + 1, 0.0)
        while self.heap:
            time, a, b = heapq.heappop(self.heap)
            if self.parent[a] < 0 and self.parent[b] < 0:
                self._collide(time, a, b)
        velocity = [self.velocity(b) for b in range(len(self.birth))]
        real = (self.birth, self.death, self.origin, velocity)
        places = (self.first, self.stop, self.parent)
        birth, death, origin, speed = (torch.tensor(c, dtype=torch.float64, device="cpu") for c in real)
        first, stop, parent = (torch.tensor(c, dtype=torch.int64, device="cpu") for c in places)
        return Trajectories(birth, death, origin, speed, first, stop, parent, order, shape, self.until)

    def _collide(self, time: float, a: int, b: int) -> None:
        mass_a, mass_b = self.stop[a] - self.first[a], self.stop[b] - self.first[b]
        at_a, at_b = self._position(a, time), self._position(b, time)
        origin = at_a + (at_b - at_a) * (mass_b / (mass_a + mass_b))
        body = self._add(time, origin, self.first[a], self.stop[b])
        for old in (a, b):
            self.death[old] = time
            self.parent[old] = body
        left, right = self.left[a], self.right[b]
        self.left[body], self.right[body] = left, right
        if left >= 0:
            self.right[left] = body
            self._expect(left, body, time)
        if right >= 0:
            self.left[right] = body
            self._expect(body, right, time)
