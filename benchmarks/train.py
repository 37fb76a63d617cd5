"""What sharing costs in training: time per step with and without, alternating in one run.

    python -m benchmarks.train [--quick]

Writes results/bench-train.json. The networks are the paper's S-FC for CIFAR10 (3,072 -> 16,384 -> 1,536
-> 10, batch norm, 75.6 M weights, R on the first layer) and a transformer of 10 M weights under AdamW.
Steps without sharing have learning rate 0, so that they do the same work and move nothing. ``--quick``
takes networks of 1/64 and 1/16 of the size.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weightshare as ws
from benchmarks.measure import circumstances, store
from weightshare.metrics import summary
from weightshare.training import Rule, WeightSharing

PAPER = {"imminent": 5.0, "search": 20.0, "sequential": 180.0}
"""Epochs with R over epochs without, as the paper gives them."""
LIMITS = {"s-fc tied": 1.10, "s-fc random": 1.6, "transformer tied": 1.15}


def s_fc(shrink: int) -> nn.Sequential:
    """The fully connected twin of S-CONV (Neyshabur 2020), with both hidden layers 1/shrink as wide."""
    first, second = 16384 // shrink, 1536 // shrink
    return nn.Sequential(
        nn.Linear(3072, first), nn.BatchNorm1d(first), nn.ReLU(),
        nn.Linear(first, second), nn.BatchNorm1d(second), nn.ReLU(), nn.Linear(second, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """A small encoder over 1,000 tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at every place."""
        return self.head(self.encoder(self.embed(tokens))).flatten(0, 1)


class Run:
    """A network, its data and its optimizer with sharing attached."""

    def __init__(
        self, model: nn.Module, data: tuple[Tensor, Tensor], optimizer: Any, select: Any, alpha: float
    ) -> None:
        self.model, (self.inputs, self.labels) = model, data
        self.optimizer, self.alpha = optimizer(model.parameters()), alpha
        self.sharing = WeightSharing(model, self.optimizer, Rule(select, alpha=lambda step: self.alpha))
        self.weights = [p.tensor for unit in self.sharing.units for p in unit.members]
        self.lr = self.optimizer.param_groups[0]["lr"]

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
        self.optimizer.step()

    def plain(self) -> None:
        """The same work without sharing; nothing moves."""
        self.optimizer.param_groups[0]["lr"] = 0.0
        with self.sharing.paused():
            self.step()
        self.optimizer.param_groups[0]["lr"] = self.lr

    @torch.no_grad()
    def tie_(self, values: int) -> None:
        """Put the weights where training leaves them: on few values, with an alpha that keeps them there."""
        rounded = [(w / (scale := float(w.abs().max()) * 2 / values)).round() * scale for w in self.weights]
        while True:
            for w, few in zip(self.weights, rounded):
                w.copy_(few)
            with torch.enable_grad():
                for _ in range(3):
                    self.step()
            if self.distinct() < 0.01 * sum(w.numel() for w in self.weights):
                self.alpha *= 4.0  # a margin, so that it stays so
                return
            self.alpha *= 4.0

    def distinct(self) -> int:
        """Distinct values, added up over the tensors."""
        return sum(summary(w).distinct for w in self.weights)

    def alternate(self, rounds: int) -> dict[str, float]:
        """Seconds of a step with and without, and their ratio, by medians over pairs."""
        pairs = [(_seconds(self.plain), _seconds(self.step)) for _ in range(rounds + 1)][1:]
        return {
            "without": statistics.median(a for a, _ in pairs),
            "with": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(b / a for a, b in pairs),
            "ratio min": min(b / a for a, b in pairs),
            "ratio max": max(b / a for a, b in pairs),
            "alpha": self.alpha,
            "distinct": self.distinct(),
            "weights": sum(w.numel() for w in self.weights),
        }

    def extra_memory(self) -> float:
        """Most bytes that the hook takes while it runs, as a share of the parameters."""
        self.model.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
        with self.sharing.paused():
            self.optimizer.step()
        with peak_memory() as peak:
            self.sharing._after_step(self.optimizer, (), {})
        return peak["bytes"] / sum(p.numel() * p.element_size() for p in self.model.parameters())


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Largest growth of the resident memory inside the block, sampled every millisecond."""
    found, done = {"bytes": 0}, threading.Event()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def watch(start: int) -> None:
        while not done.wait(0.001):
            found["bytes"] = max(found["bytes"], resident() - start)

    watcher = threading.Thread(target=watch, args=(resident(),))
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def gate() -> None:
    """Nothing is timed unless an attached step is the step by hand, exactly."""
    torch.manual_seed(0)
    model = s_fc(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = model[0].weight
    run = WeightSharing(model, optimizer, Rule("0.weight", alpha=1e-2))
    nn.functional.cross_entropy(model(torch.randn(64, 3072)), torch.randint(0, 10, (64,))).backward()
    want = ws.prox(w.detach().sub(w.grad, alpha=0.1), 1e-2, step=0.1)
    optimizer.step()
    assert run.steps == 1
    assert torch.equal(w.detach(), want), "the attached step is not the hand-written one"


def measure_s_fc(shrink: int, rounds: int) -> dict[str, Any]:
    """The paper's network, at random weights and once tied."""
    batch = 512 if shrink == 1 else 128
    torch.manual_seed(0)
    data = torch.randn(batch, 3072), torch.randint(0, 10, (batch,))
    make = lambda params: torch.optim.SGD(params, lr=0.1)  # noqa: E731
    run = Run(s_fc(shrink), data, make, "0.weight", 1e-3)
    found = {"random": run.alternate(rounds)}
    run.tie_(32)
    found["tied"] = run.alternate(rounds) | {"extra memory": run.extra_memory()}
    return found


def measure_transformer(width: int, layers: int, rounds: int) -> dict[str, Any]:
    """AdamW, every Linear's weight a vector."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 1000, (8, 65))
    make = lambda params: torch.optim.AdamW(params, lr=1e-3)  # noqa: E731
    data = tokens[:, :-1], tokens[:, 1:].reshape(-1)
    run = Run(Transformer(width, layers), data, make, nn.Linear, 1.0)
    found = {"random": run.alternate(rounds)}
    run.tie_(32)
    found["tied"] = run.alternate(rounds) | {"extra memory": run.extra_memory()}
    return found


def measure_algorithms(shrink: int) -> dict[str, Any]:
    """Seconds of the prox by each of the paper's algorithms, beside a training step, once tied."""
    torch.manual_seed(0)
    data = torch.randn(128, 3072), torch.randint(0, 10, (128,))
    run = Run(s_fc(shrink), data, lambda params: torch.optim.SGD(params, lr=0.1), "0.weight", 1e-3)
    run.tie_(32)
    step = min(_seconds(run.plain) for _ in range(5))
    with run.sharing.paused():
        run.step()
    w = run.weights[0].detach()
    found = {"step": step, "weights": w.numel()}
    for name in ("auto", "sequential", "imminent", "search"):
        call = lambda name=name: ws.prox(w, run.alpha, step=0.1, algorithm=name)  # noqa: E731
        call()
        seconds = min(_seconds(call) for _ in range(3))
        found[name] = {
            "seconds": seconds, "step with / without": 1 + seconds / step, "paper": PAPER.get(name)
        }  # fmt: skip
    return found


def main() -> None:
    """Measure, print against the limits, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small networks, few rounds")
    quick = parser.parse_args().quick
    gate()
    results: dict[str, Any] = {"circumstances": circumstances() | {"threads": torch.get_num_threads()}}
    results["s-fc"] = measure_s_fc(64 if quick else 1, 5 if quick else 7)
    results["transformer"] = measure_transformer(*((192, 2, 5) if quick else (384, 6, 9)))
    results["algorithms"] = measure_algorithms(64 if quick else 16)
    for network in ("s-fc", "transformer"):
        # The steps without sharing do the same work in both states: if they differ, the machine was busy.
        seconds = [results[network][state]["without"] for state in ("random", "tied")]
        results[network]["steady"] = max(seconds) < 1.15 * min(seconds)
        if not results[network]["steady"]:
            print(f"{network}: the baselines took {seconds} s; its ratios cannot be trusted, run again")
    for name, limit in LIMITS.items():
        network, state = name.split()
        ratio = results[network][state]["ratio"]
        print(f"{name:18} {ratio:6.2f} x   (limit {limit:.2f} x{'' if ratio <= limit else ', MISSED'})")
    for network in ("s-fc", "transformer"):
        print(f"{network:18} extra memory {results[network]['tied']['extra memory']:.1%} of the parameters")
    for name in ("auto", *PAPER):
        row = results["algorithms"][name]
        said = f"   (the paper: {row['paper']:.0f} x)" if row["paper"] else ""
        print(f"{name:18} {row['step with / without']:6.2f} x{said}")
    print("wrote", store("bench-train-quick" if quick else "bench-train", results).name)


if __name__ == "__main__":
    main()
