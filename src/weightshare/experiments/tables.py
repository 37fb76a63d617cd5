"""The paper's tables from stored results, ours next to the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weightshare.experiments import published
from weightshare.experiments.collect import Record, Stat, one_preset, rows
from weightshare.experiments.published import Published
from weightshare.experiments.sheet import PERCENT, Cell, Number, Sheet

NAMES = ("torus", "cifar10", "runtime", "complexity")

TORUS_SHARE = 0.6
"""Table 2 is for 60 % of the training set."""


def torus(records: Sequence[Record], preset: str | None = None, share: float = TORUS_SHARE) -> Sheet:
    """Table 2: MNIST on a torus. A row whose runs are missing says so, and how to make them."""
    records = [r for r in records if str(r.config.get("recipe", "")).startswith("torus/")]
    preset = one_preset(records, preset)
    columns = ["Model", "Test acc. %", "paper", "Pred. asym. %", "paper", "Filter score", "Tied %", "Seeds"]
    body, notes = [], [_meaning_of_spread]
    for row in published.TORUS:
        found, left_out = rows(
            records, recipe=row.recipe, variant=row.variant, preset=preset, train_share=share
        )
        extra = {} if row.variant == "plain" else {"variant": row.variant}
        if share != TORUS_SHARE:
            extra["train_share"] = share
        _say(notes, row, preset, len(found), left_out, extra)
        body.append(
            [
                row.label,
                _percent(found, "test_accuracy"),
                _published(row.test_accuracy if share == TORUS_SHARE else None),
                _percent(found, "asymmetry"),
                _published(row.asymmetry if share == TORUS_SHARE else None),
                _number(found, first_layer_score),
                _percent(found, "exact_sharing") if row.recipe != "torus/cnn" else None,
                str(len(found)) if found else _MISSING,
            ]
        )
    notes.append(
        "An MLP's row is the same for all three variants: permuting pixels permutes its first layer's columns."
    )
    return Sheet(f"MNIST on a torus, {share:.0%} of the training set, preset {preset}", columns, body, notes)


def cifar10(records: Sequence[Record], preset: str | None = None) -> Sheet:
    """Table 3: CIFAR10."""
    records = [r for r in records if str(r.config.get("recipe", "")).startswith("cifar10/")]
    preset = one_preset(records, preset)
    columns = [
        "Model", "Test acc. %", "paper", "Sparsity %", "paper", "Weight sh. %", "paper", "exactly tied %",
        "Filter score", "Seeds",
    ]  # fmt: skip
    body, notes = [], [_meaning_of_spread]
    for row in published.CIFAR10:
        found, left_out = rows(records, recipe=row.recipe, preset=preset)
        _say(notes, row, preset, len(found), left_out, {})
        body.append(
            [
                row.label,
                _percent(found, "test_accuracy"),
                _published(row.test_accuracy),
                _percent(found, "sparsity"),
                _published(row.sparsity),
                _percent(found, "sharing"),
                _published(row.sharing),
                _percent(found, "exact_sharing"),
                _number(found, first_layer_score),
                str(len(found)) if found else _MISSING,
            ]
        )
    notes.append(
        "Weight sh. is the paper's measure, 1 - distinct/nonzero after rounding to 8 decimals: in large layers "
        "unrelated weights coincide too. Exactly tied counts bitwise."
    )
    notes.append(
        "The paper's subgradient row was computed without the gradient of R reaching the weights; ours is a "
        "subgradient method."
    )
    return Sheet(f"CIFAR10, preset {preset}", columns, body, notes)


def runtime(measured: dict[str, Any] | None) -> Sheet:
    """Table 4: seconds per epoch by algorithm, on the weights of a real run."""
    columns = ["Algorithm", "Prox, ms a step", "Seconds per epoch", "times no regularisation", "paper, s"]
    body: list[list[Cell]] = []
    plain = measured["seconds_per_epoch"]["none"] if measured else None
    for name, label in _ALGORITHMS.items():
        seconds = measured["seconds_per_epoch"].get(name) if measured else None
        prox = measured["prox_seconds"].get(name) if measured else None
        paper = published.SECONDS_PER_EPOCH.get(name)
        body.append(
            [
                label,
                f"{1e3 * prox:,.2f}" if prox is not None else None,
                f"{seconds:,.2f}" if seconds is not None else _MISSING,
                f"{seconds / plain:.2f}" if seconds is not None and plain else None,
                f"{paper:,.0f}" if paper is not None else None,
            ]
        )
    if measured is None:
        return Sheet(
            "Run time per epoch", columns, body, ["`weightshare table runtime --measure` measures it."]
        )
    config, where = measured["config"], measured["circumstances"]
    notes = [
        f"{config['recipe']}, preset {config['preset']}, after {measured['epochs']} epochs: the prox of "
        f"{measured['weights']:,} weights at each of {measured['steps_per_epoch']} steps, and the plain step; "
        f"{where['processor']}, {measured['threads']} threads. The paper: 5·10⁷ weights on a GPU, approximate.",
    ]
    return Sheet("Run time per epoch", columns, body, notes)


def complexity(measured: dict[str, Any] | None) -> Sheet:
    """Table 1 in rounds: how many parallel steps each algorithm takes, in training and at worst."""
    columns = ["Weights", "where", *_ROUNDS.values()]
    bounds = [published.COMPLEXITY.get(name) for name in _ROUNDS]
    body: list[list[Cell]] = [["paper, time on p processors", "at worst", *bounds]]
    about, size = published.ROUNDS["imminent"]
    body.append(
        [f"{size:,}", "paper, in training", *(f"~{about}" if n == "imminent" else None for n in _ROUNDS)]
    )
    for point in measured["rounds"] if measured else []:
        counts = (point["rounds"].get(name) for name in _ROUNDS)
        body.append(
            [f"{point['weights']:,}", point["where"], *(None if c is None else f"{c:,}" for c in counts)]
        )
    if measured is None:
        body.append([_MISSING, "in training", *(None for _ in _ROUNDS)])
        notes = ["`weightshare table complexity --measure` measures ours."]
    else:
        notes = [
            "A round is one parallel step of the algorithm; every round of Imminent has a prefix sum inside, "
            "and every level of Search a bisection. An empty cell: given up after too many rounds.",
            f"In training: {measured['config']['recipe']}, preset {measured['config']['preset']}, as the prox "
            f"receives the weights.",
        ]
    return Sheet("Rounds of the collisions algorithms", columns, body, notes)


def first_layer_score(record: Record) -> float | None:
    """The filter score of the first layer that has one."""
    scores = (layer.get("filter_score") for layer in record.metrics.get("layers", {}).values())
    return next((s for s in scores if s is not None), None)


_MISSING = "not run"
_meaning_of_spread = "Mean ± standard deviation over seeds; the paper gives single numbers."

_ALGORITHMS = {
    "sequential": "Sequential PAV",
    "search": "Search Collisions",
    "imminent": "Imminent Collisions (v2)",
    "imminent-v1": "Imminent Collisions (v1)",
    "bridge": "Bridge (ours)",
    "auto": "Certified prox (ours)",
    "none": "No regularization",
}

_ROUNDS = {
    "imminent": "Imminent (v2)",
    "imminent-v1": "Imminent (v1)",
    "end": "End",
    "search": "Search",
}


def _percent(found: Sequence[Record], key: str) -> Number | None:
    """A share in the metrics of every run, in percent."""
    stat = Stat.of(r.metrics.get(key) for r in found)
    return Number(stat, PERCENT) if stat else None


def _number(found: Sequence[Record], value: Any) -> Number | None:
    stat = Stat.of(value(r) for r in found)
    return Number(stat) if stat else None


def _published(share: float | None) -> str | None:
    return None if share is None else f"{PERCENT * share:.2f}"


def _say(
    notes: list[str], row: Published, preset: str, runs: int, left_out: int, extra: dict[str, Any]
) -> None:
    """What a reader has to know about the runs of a row."""
    if not runs:
        settings = "".join(f" --set {key}={value}" for key, value in extra.items())
        notes.append(
            f"{row.label} is not run: `weightshare train {row.recipe} --preset {preset}{settings} --seeds 0,1,2`."
        )
    elif left_out:
        runs_are = "run is" if left_out == 1 else "runs are"
        notes.append(f"{row.label}: {left_out} {runs_are} left out, made with other settings.")
