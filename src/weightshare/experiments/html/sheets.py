"""The tables of the page."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from weightshare import compress, metrics
from weightshare.compress.files import write_plain
from weightshare.experiments.html.shown import Shown, setting
from weightshare.experiments.sheet import Cell, Sheet

FLOAT_BITS = 32
_HASH = 40  # digits of a commit


def results(shown: Sequence[Shown]) -> Sheet:
    """The numbers at the end, a row for each run."""
    numbers = [{**one.rows[-1], **one.summary, **_of_layers(one)} for one in shown]
    used = [column for column in _RESULTS if any(row.get(column[1]) is not None for row in numbers)]
    rows: list[list[Cell]] = [
        [one.name, *(write(row.get(key)) for _, key, write, _ in used)] for one, row in zip(shown, numbers)
    ]
    notes = [note for *_, note in used if note]
    return Sheet("Results", ["Run", *(head for head, *_ in used)], _dashes(rows), notes)


def _of_layers(one: Shown) -> dict[str, Any]:
    """What stands in the summary deeper down."""
    scores = (layer.get("filter_score") for layer in one.summary.get("layers", {}).values())
    healed = one.summary.get("healed") or {}
    return {
        "filter_score": next((s for s in scores if s is not None), None),
        "healed_accuracy": healed.get("test_accuracy", healed.get("valid_accuracy")),
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def _whole(number: float | None) -> str | None:
    return None if number is None else f"{number:,.0f}"


def _decimal(number: float | None) -> str | None:
    return None if number is None else f"{number:.3g}"


def _score(number: float | None) -> str | None:
    return None if number is None else f"{number:.2f}"


_Column = tuple[str, str, Callable[[Any], "str | None"], str]

_RESULTS: tuple[_Column, ...] = (
    ("Test accuracy", "test_accuracy", _percent, ""),
    ("Validation accuracy", "valid_accuracy", _percent, ""),
    ("Accuracy, healed", "healed_accuracy", _percent, "Healed: trained on with the ties kept."),
    ("Training accuracy", "train_accuracy", _percent, ""),
    (
        "Prediction asymmetry",
        "asymmetry",
        _percent,
        "Prediction asymmetry: the share of images that have two translations with different predictions. "
        "Less is better; a convolutional network on the torus has none.",
    ),
    (
        "Tied",
        "exact_sharing",
        _percent,
        "Tied: the share of the nonzero weights of the regularised layers that repeat another one's value, "
        "bit for bit. Zero: the share of their weights that is zero. A convolution counts as the matrix that "
        "it is, most of which is zeros and copies.",
    ),
    ("Zero", "sparsity", _percent, ""),
    (
        "Filter score",
        "filter_score",
        _score,
        "Filter score: how much of a first-layer filter is a translated copy of another one, beyond chance; "
        "1 for a convolution, about 0 for random weights.",
    ),
    ("Parameters", "parameters", _whole, ""),
    ("Epochs", "epochs", _whole, ""),
    ("Seconds per epoch", "seconds_per_epoch", _decimal, ""),
)


def files(shown: Sequence[Shown]) -> Sheet | None:
    """The sizes of real files: each run's weights as plain safetensors, and by :func:`compress.save`."""
    columns = ["Run", "Numbers", "safetensors, bytes", "ws.save, bytes", "Times smaller", "Bits per number"]
    rows: list[list[Cell]] = []
    for one in shown:
        if one.weights:
            plain, small = file_sizes(one.weights)
            numbers = sum(w.numel() for w in one.weights.values())
            rows.append([
                one.name, f"{numbers:,}", f"{plain:,}", f"{small:,}", f"{plain / small:.2f}",
                f"{8 * small / numbers:.2f}",
            ])  # fmt: skip
    notes = [
        "Whole files, headers included: everything that the model's state_dict has, written once as plain "
        "safetensors and once by ws.save, from which ws.load gives back the same bits."
    ]
    return Sheet("Files", columns, rows, notes) if rows else None


def file_sizes(weights: Mapping[str, Tensor]) -> tuple[int, int]:
    """Bytes of a state_dict in a plain safetensors file, and in a compressed one; both are really written.

    >>> import torch
    >>> plain, small = file_sizes({"weight": torch.tensor([0.25, 0.5]).repeat(5000)})
    >>> plain > 40_000, small < 3_000
    (True, True)
    """
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder, "plain.safetensors"), Path(folder, "small.ws.safetensors")
        write_plain(weights, plain, {})
        compress.save(weights, small)
        return plain.stat().st_size, small.stat().st_size


def bits(shown: Sequence[Shown]) -> Sheet | None:
    """What a tensor takes when every distinct value is written once, and the weights as a code for them."""
    rows: list[list[Cell]] = [
        [one.name, name, *_coded(metrics.summary(one.weights[name]))]
        for one in shown
        for name in one.layers
        if name in one.weights
    ]
    columns = [
        "Run", "Tensor", "Weights", "Distinct", "Zeros", "Bits per weight", "float32, kB", "Coded, kB",
        "Times smaller",
    ]  # fmt: skip
    note = (
        "Bits per weight is the entropy of the values, against 32 of a float32. Coded: the weights at that "
        "many bits, and 4 bytes for each distinct value; where most are distinct, as float32."
    )
    return Sheet("Bits", columns, rows, [note]) if rows else None


def _coded(found: metrics.Summary) -> list[Cell]:
    plain = found.weights * FLOAT_BITS / 8
    coded = math.ceil(found.entropy * found.weights / 8) + found.distinct * FLOAT_BITS / 8
    coded = min(coded, plain)
    return [
        f"{found.weights:,}",
        f"{found.distinct:,}",
        f"{found.zeros:,}",
        f"{found.entropy:.2f}",
        f"{plain / 1e3:,.1f}",
        f"{coded / 1e3:,.1f}",
        f"{plain / coded:.1f}",
    ]


def settings(shown: Sequence[Shown]) -> Iterator[Sheet]:
    """In which settings the runs differ, a row for each run; and those that they have in common."""
    everything = [{**one.run.config, **_where(one)} for one in shown]
    keys = list(dict.fromkeys(key for row in everything for key in row))
    shared = [key for key in keys if all(row.get(key) == everything[0].get(key) for row in everything)]
    own = [key for key in keys if key not in shared]
    if own:
        rows: list[list[Cell]] = [
            [one.name, *(setting(row.get(key)) for key in own)] for one, row in zip(shown, everything)
        ]
        yield Sheet("Where the runs differ", ["Run", *own], rows)
    title = "The same in all runs" if own else "All settings"
    yield Sheet(title, ["Setting", "Value"], [[key, setting(everything[0].get(key))] for key in shared])


def _where(one: Shown) -> dict[str, Any]:
    """When, from what and on what the run was made."""
    found = {key: one.run.circumstances.get(key) for key in ("date", "commit", "processor")}
    commit = found["commit"]
    return {
        **found,
        "commit": commit and f"{commit[:12]}{commit[_HASH:]}",
    }  # what follows says that it was changed


def _dashes(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    return [["-" if cell is None else cell for cell in row] for row in rows]
