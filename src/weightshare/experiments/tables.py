"""The paper's tables from stored results, ours next to the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    body: list[list[Cell]] = []
    notes = [_SPREAD]
    for row in [*published.TORUS, *_unpublished(records)]:
        wanted = {"variant": row.variant, "train_share": share}
        found, left_out = rows(records, recipe=row.recipe, preset=preset, **wanted)
        standard = {"variant": "plain", "train_share": TORUS_SHARE}
        changed = {key: value for key, value in wanted.items() if value != standard[key]}
        _say(notes, row, preset, found, left_out, changed)
        comparable = share == TORUS_SHARE
        body.append(
            [
                row.label,
                _percent(found, "test_accuracy"),
                _published(row.test_accuracy) if comparable else None,
                _percent(found, "asymmetry"),
                _published(row.asymmetry) if comparable else None,
                _number(found, first_layer_score),
                _percent(found, "exact_sharing") if row.recipe != "torus/cnn" else None,
                _seeds(found),
            ]
        )
    notes.append(
        "Without symmetry an MLP sees its inputs in another order, which is a permutation of its first "
        "layer's columns: the same network, the same numbers."
    )
    return Sheet(f"MNIST on a torus, {share:.0%} of the training set, preset {preset}", columns, body, notes)


def _unpublished(records: Sequence[Record]) -> list[Published]:
    """Variants that were run of rows that the paper shows for the plain one only."""
    known = {(row.recipe, row.variant) for row in published.TORUS}
    labels = {row.recipe: row.label for row in published.TORUS if row.variant == "plain"}
    extra = {(r.config["recipe"], r.config["variant"]) for r in records} - known
    return [
        Published(f"{label} (-{variant.removeprefix('no-')})", recipe, variant)
        for recipe, label in labels.items()
        for variant in ("no-locality", "no-symmetry")
        if (recipe, variant) in extra
    ]


def cifar10(records: Sequence[Record], preset: str | None = None) -> Sheet:
    """Table 3: CIFAR10."""
    records = [r for r in records if str(r.config.get("recipe", "")).startswith("cifar10/")]
    preset = one_preset(records, preset)
    columns = [
        "Model", "Test acc. %", "paper", "Sparsity %", "paper", "Weight sh. %", "paper", "Exactly tied %",
        "Filter score", "Seeds",
    ]  # fmt: skip
    body: list[list[Cell]] = []
    notes = [_SPREAD]
    for row in published.CIFAR10:
        found, left_out = rows(records, recipe=row.recipe, preset=preset)
        _say(notes, row, preset, found, left_out, {})
        body.append(
            [
                row.label,
                _percent(found, "test_accuracy"),
                _published(row.test_accuracy),
                _number(found, _sparsity, PERCENT),
                _published(row.sparsity),
                _percent(found, "sharing"),
                _published(row.sharing),
                _percent(found, "exact_sharing"),
                _number(found, first_layer_score),
                _seeds(found),
            ]
        )
    notes.append(
        "Weight sh. is the paper's measure, 1 - distinct/nonzero after rounding to 8 decimals: in large "
        "layers unrelated weights coincide too. Exactly tied counts bitwise. The CNN counts as the fully "
        "connected layer that it is, and its sparsity is all of that but the free parameters."
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
        f"{measured['weights']:,} weights at each of {measured['steps_per_epoch']} steps, and the plain "
        f"step; {where['processor']}, {measured['threads']} threads. The paper: 5·10⁷ weights on a GPU.",
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
            "A round is one parallel step of the algorithm: in Imminent a prefix sum, in Search a step of "
            "the bisections. An empty cell: too slow to be counted.",
            f"In training: {measured['config']['recipe']}, preset {measured['config']['preset']}; the "
            "weights as the prox receives them.",
        ]
    return Sheet("Rounds of the collisions algorithms", columns, body, notes)


def first_layer_score(record: Record) -> float | None:
    """The filter score of the first layer that has one."""
    scores = (layer.get("filter_score") for layer in record.metrics.get("layers", {}).values())
    return next((s for s in scores if s is not None), None)


_MISSING = "not run"
_SPREAD = "Mean ± standard deviation over seeds; the paper gives single numbers."

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


def _number(
    found: Sequence[Record], value: Callable[[Record], float | None], scale: float = 1.0
) -> Number | None:
    stat = Stat.of(map(value, found))
    return Number(stat, scale) if stat else None


def _sparsity(record: Record) -> float | None:
    """Of a convolution, the paper's: as the matrix that it is, less its free parameters."""
    for layer in record.metrics.get("layers", {}).values():
        if "as_dense" in layer:
            return float(layer["as_dense"]["free_sparsity"])
    found: float | None = record.metrics.get("sparsity")
    return found


def _published(share: float | None) -> str | None:
    return None if share is None else f"{PERCENT * share:.2f}"


def _seeds(found: Sequence[Record]) -> str:
    return str(len(found)) if found else _MISSING


def _say(
    notes: list[str],
    row: Published,
    preset: str,
    found: Sequence[Record],
    left_out: int,
    changed: dict[str, Any],
) -> None:
    """What a reader has to know about the runs of a row."""
    if not found:
        settings = "".join(f" --set {key}={value}" for key, value in changed.items())
        command = f"weightshare train {row.recipe} --preset {preset}{settings} --seeds 0,1,2"
        notes.append(f"{row.label} is not run: `{command}`.")
    elif not found[0].standard:
        notes.append(f"{row.label}: made with other settings than the recipe has now.")
    if left_out:
        notes.append(f"{row.label}: {left_out} more, with other settings, left out.")
