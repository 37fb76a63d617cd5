"""How long the prox takes by each algorithm, and how many rounds, on weights that real training has made.

The state that is measured is that of the recipe ``cifar10/r`` after some epochs: its weights as the prox
receives them, that is, after the gradient step has pulled ties apart. The worst case is the paper's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import weightshare as ws
from weightshare.collisions import Chain, lookup
from weightshare.experiments import models, recipes, tasks
from weightshare.experiments.config import Config
from weightshare.experiments.files import circumstances
from weightshare.experiments.rules import Clock, rules
from weightshare.experiments.torch_settings import as_configured
from weightshare.experiments.train import device_of

ALGORITHMS = ("auto", "bridge", "sequential", "search", "imminent", "imminent-v1")
"""Those whose time is measured."""

COUNTED = ("imminent", "imminent-v1", "end", "search")
"""Those whose rounds are counted."""

PATIENCE = 20.0
"""Seconds that an algorithm may take for one vector; one that took more is not asked about larger ones."""

QUICK = 2**12
"""So many weights are looked at when it has to be quick."""

Progress = Callable[[str], None]


class State:
    """A model in training, which can say what the prox of its next step will receive."""

    def __init__(self, config: Config) -> None:
        self.config, device = config, device_of(config)
        torch.manual_seed(config.seed)
        self.task = tasks.make(config, device)
        self.model = models.build(config, self.task.side).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr, momentum=config.momentum)
        self.sharing = ws.WeightSharing(self.model, self.optimizer, rules(config, Clock()))
        self.steps = len(self.task.train) // config.batch

    @property
    def weight(self) -> Tensor:
        """The first layer's weights."""
        return self.model.get_parameter("layer1.weight").detach()

    @property
    def alpha(self) -> float:
        """What the destinations are computed with: alpha, times the learning rate where that is coupled."""
        step = self.config.lr if self.config.coupling == "scaled" else 1.0
        return self.config.strength(1) * step

    def train(self, epochs: int) -> None:
        """So many epochs, at the full learning rate."""
        for _ in range(epochs):
            for chosen in torch.split(torch.randperm(len(self.task.train)), self.config.batch):
                if len(chosen) == self.config.batch:
                    self.step(*self.task.batch(chosen))

    def batch(self) -> tuple[Tensor, Tensor]:
        """A batch to take a step with."""
        return self.task.batch(torch.randint(len(self.task.train), (self.config.batch,)))

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One step."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def received(self, most: int | None = None) -> Tensor:
        """A step without its prox, and the weights after it; the first of them, where there is a limit."""
        with self.sharing.paused():
            self.step(*self.batch())
        return self.weight.flatten()[:most].clone()


def chain(w: Tensor, alpha: float) -> Chain:
    """Where the particles of Algorithm 2 are going, with unit masses as in its lines 3 to 5.

    >>> chain(torch.tensor([2.0, 0.0, 1.0]), 0.5).y.tolist()
    [0.5, 1.0, 1.5]
    """
    d = w.numel()
    place = torch.arange(d, dtype=torch.float64)
    x = w.flatten().to("cpu", torch.float64).sort().values
    return Chain.single(x + alpha / max(d - 1, 1) * (d - 1 - 2 * place))


def rounds(found: Chain, names: Sequence[str] = COUNTED, patience: float = PATIENCE) -> dict[str, int]:
    """How many rounds each algorithm takes. End, a round for each cluster, is not run where they are many."""
    return {name: lookup(name)(found).rounds for name in names if name != "end" or _few(found, patience)}


def _few(found: Chain, patience: float) -> bool:
    """Whether End's rounds, each over all weights, are likely to end in that time."""
    clusters = int(lookup("sequential")(found).heads.sum())
    return clusters * found.y.numel() * 1e-8 < patience


class Counter:
    """Counts rounds on ever larger vectors, without the algorithms that took too long for one of them.

    >>> impatient = Counter(patience=0.0)
    >>> pair = Chain.single(torch.tensor([1.0, 0.0], dtype=torch.float64))
    >>> impatient(pair), impatient(pair)
    ({'imminent': 1, 'imminent-v1': 1, 'search': 2}, {})
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience, self.names = patience, list(COUNTED)

    def __call__(self, found: Chain) -> dict[str, int]:
        """The rounds of those that are left."""
        counts: dict[str, int] = {}
        for name in list(self.names):
            start = time.perf_counter()
            counts |= rounds(found, [name], self.patience)
            if time.perf_counter() - start > self.patience:
                self.names.remove(name)
        return counts


def measure(quick: bool = False, progress: Progress = print) -> dict[str, Any]:
    """Seconds per epoch by algorithm, and rounds as training goes on; for Tables 1 and 4."""
    with as_configured(recipes.recipe("cifar10/r", "smoke" if quick else "cpu", threads=0)):
        return _measure(quick, progress)


def _measure(quick: bool, progress: Progress) -> dict[str, Any]:
    sizes, epochs, most = ((1,), 1, QUICK) if quick else ((2, 4, 8), 10, None)
    config = recipes.recipe("cifar10/r", "smoke" if quick else "cpu", width=sizes[-1])
    found: dict[str, Any] = {"config": config.to_dict(), "epochs": epochs}
    points: list[dict[str, Any]] = []
    count = Counter()
    for width in sizes:
        state = State(recipes.recipe(config.recipe, config.preset, width=width))
        for epoch in range(epochs + 1):
            if epoch:
                state.train(1)
            if epoch in (0, 1, epochs):
                where = f"in training, after {epoch} epochs"
                w = state.received(most)
                points.append({"weights": w.numel(), "where": where, "rounds": count(chain(w, state.alpha))})
                progress(f"{w.numel():,} weights, {where}: {points[-1]['rounds']}")
    points += _worst_rounds(quick)
    seconds = _seconds(state, most, progress)
    return {**found, "rounds": points, **seconds, "circumstances": circumstances()}


def _worst_rounds(quick: bool) -> Iterator[dict[str, Any]]:
    for power in (8, 10) if quick else (10, 12, 14):
        w, alpha = worst_weights(2**power)
        yield {"weights": 2**power, "where": "worst case", "rounds": rounds(chain(w, alpha))}


def _seconds(state: State, most: int | None, progress: Progress) -> dict[str, Any]:
    """A plain step (forward, backward, optimizer), and the prox by each algorithm on what it receives."""
    images, labels = state.batch()
    with state.sharing.paused():
        plain = _median(lambda: state.step(images, labels))
    w = state.received(most)
    prox: dict[str, float] = {}
    for name in ALGORITHMS:
        prox[name] = _median(partial(ws.prox, w, state.alpha, algorithm=name))
        progress(f"{name}: {1e3 * prox[name]:.1f} ms, beside a step of {1e3 * plain:.1f} ms")
    return {
        "weights": w.numel(),
        "threads": torch.get_num_threads(),
        "steps_per_epoch": state.steps,
        "prox_seconds": prox,
        "seconds_per_epoch": {
            name: state.steps * (plain + extra) for name, extra in {"none": 0.0, **prox}.items()
        },
    }


def _median(call: Callable[[], Any], least: int = 3, budget: float = 3.0) -> float:
    """Seconds of a call: the median of some, after one that warms up."""
    call()
    taken: list[float] = []
    while len(taken) < least or (sum(taken) < budget and len(taken) < 25):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
        if taken[0] > PATIENCE:
            break
    return sorted(taken)[len(taken) // 2]


def worst_weights(d: int) -> tuple[Tensor, float]:
    """Weights and alpha of the paper's worst case (section 4.1): half of them fall, the others stand in line.

    The left half is one value, which moves right as one particle; the right half is a staircase whose
    destinations climb by a hair, and is reached step by step.

    >>> w, alpha = worst_weights(64)
    >>> rounds(chain(w, alpha), ["imminent", "search"])["imminent"]
    32
    """
    half = d // 2
    step = 2.0 / (d - 1)
    stairs = 1e-4 + step * (1 + 1e-3) * torch.arange(half, dtype=torch.float64)
    return torch.cat([torch.zeros(d - half, dtype=torch.float64), stairs]), 1.0


def worst_case(quick: bool = False, progress: Progress = print) -> dict[str, Any]:
    """Run times on the worst case against d, for the paper's figure; each as far as its patience goes."""
    top, patience = (10, 0.2) if quick else (20, 4.0)
    points: list[dict[str, Any]] = []
    given_up: set[str] = set()
    for power in range(6, top + 1):
        w, alpha = worst_weights(2**power)
        seconds: dict[str, float] = {}
        for name in ("imminent", "search", "auto"):
            if name not in given_up:
                seconds[name] = _median(partial(ws.prox, w, alpha, algorithm=name), budget=patience / 4)
                if seconds[name] > patience:
                    given_up.add(name)
        points.append({"weights": 2**power, "seconds": seconds})
        progress(f"d = {2**power:,}: " + ", ".join(f"{n} {s:.2g} s" for n, s in seconds.items()))
    return {"points": points, "threads": torch.get_num_threads(), "circumstances": circumstances()}
