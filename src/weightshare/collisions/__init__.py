"""The paper's collisions algorithms, and ours, behind one contract and one table.

To add one: write a file with a function from :class:`Chain` to :class:`Pooled`, and give it a row
in ``TABLE``. The tests run over the table, so the row is also what gets it tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from weightshare import checks
from weightshare.collisions.auto import auto, guarded
from weightshare.collisions.bridge import bridge
from weightshare.collisions.chain import Algorithm, Chain, Pooled
from weightshare.collisions.end import end
from weightshare.collisions.imminent import imminent, imminent_v1
from weightshare.collisions.search import search
from weightshare.collisions.sequential import sequential

__all__ = ["TABLE", "Algorithm", "AlgorithmTable", "Chain", "Entry", "Pooled", "algorithms", "lookup"]


@dataclass(frozen=True)
class Entry:
    """One row of the table of algorithms. Costs are those after the sort."""

    name: str
    solve: Algorithm
    source: str
    work: str
    depth: str
    runs_on: str
    remark: str


TABLE = {
    entry.name: entry
    for entry in (
        Entry("auto", auto, "section 6, practical remarks", "-", "-", "any device",
              "the certified prox on the CPU, guarded elsewhere"),
        Entry("sequential", sequential, "pool adjacent violators", "O(d)", "O(d)", "CPU, rows in parallel",
              "the baseline that everything is tested against"),
        Entry("imminent-v1", imminent_v1, "Algorithm 4", "O(d^2)", "O(d)", "any device",
              "odd and even pairs in turn"),
        Entry("imminent", imminent, "Algorithm 3", "O(d^2)", "O(d log d)", "any device",
              "runs merge at once; few rounds in training, d/2 at worst"),
        Entry("end", end, "Algorithm 5", "O(d c)", "O(c log d)", "any device",
              "leftmost cluster first; good for few clusters c"),
        Entry("search", search, "Algorithm 1", "O(d log^2 d)", "O(log^3 d)", "any device",
              "no bad inputs"),
        Entry("guarded", guarded, "section 6, practical remarks", "O(d log^2 d)", "O(log^3 d)", "any device",
              "imminent, with search as the backup once it gets stuck"),
        Entry("bridge", bridge, "common tangent of hulls", "O(d)", "O(d)", "CPU, tiles in parallel",
              "pooled halves merged by bisection"),
    )
}  # fmt: skip


def lookup(name: str) -> Algorithm:
    """The algorithm of that name; the error for an unknown one lists the known."""
    return TABLE[checks.choice("algorithm", name, TABLE)].solve


class AlgorithmTable(tuple[Entry, ...]):
    """The entries, printing as a table."""

    def __repr__(self) -> str:
        head = ("algorithm", "source", "work", "depth", "runs on", "remark")
        lines = [head, *((e.name, e.source, e.work, e.depth, e.runs_on, e.remark) for e in self)]
        widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
        return "\n".join(
            "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths)).rstrip() for line in lines
        )


def algorithms() -> AlgorithmTable:
    """All algorithms with what each costs; ``print`` it for a table.

    >>> import weightshare as ws
    >>> [entry.name for entry in ws.algorithms()][:4]
    ['auto', 'sequential', 'imminent-v1', 'imminent']
    """
    return AlgorithmTable(TABLE.values())
