"""A table of words and measured numbers, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weightshare import checks
from weightshare.experiments.collect import Stat

PERCENT = 100.0


@dataclass(frozen=True)
class Number:
    """A measured number as it is shown: times ``scale``, with so many decimals."""

    value: Stat
    scale: float = 1.0
    digits: int = 2

    @property
    def mean(self) -> str:
        return f"{self.scale * self.value.mean:,.{self.digits}f}"

    @property
    def std(self) -> str:
        return "" if self.value.std is None else f"{self.scale * self.value.std:,.{self.digits}f}"

    def __str__(self) -> str:
        return f"{self.mean} ± {self.std}" if self.std else self.mean


Cell = str | Number | None


@dataclass(frozen=True)
class Sheet:
    """Rows under columns, and what has to be said about them.

    >>> sheet = Sheet("Accuracy", ["Model", "%"], [["MLP", Number(Stat.of([0.9, 0.92]), 100)], ["CNN", None]])
    >>> print(sheet.markdown())
    **Accuracy**
    <BLANKLINE>
    | Model | % |
    |---|---:|
    | MLP | 91.00 ± 1.41 |
    | CNN | - |
    >>> print(sheet.csv())
    Model,%,% std
    MLP,91.00,1.41
    CNN,,
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=list)

    def cells(self) -> list[list[str]]:
        """Everything as text."""
        return [["-" if cell is None else str(cell) for cell in row] for row in self.rows]

    def render(self, format: str) -> str:
        """In one of the :data:`FORMATS`."""
        return FORMATS[checks.choice("format", format, FORMATS)](self)

    def markdown(self) -> str:
        """For a page or a terminal."""
        rule = "|" + "|".join(["---"] + ["---:"] * (len(self.columns) - 1)) + "|"
        lines = ["| " + " | ".join(row) + " |" for row in [list(self.columns), *self.cells()]]
        notes = ["", *(f"{note}  " for note in self.notes)] if self.notes else []
        return "\n".join([f"**{self.title}**", "", lines[0], rule, *lines[1:], *notes]).rstrip()

    def csv(self) -> str:
        """For programs: means and standard deviations in columns of their own."""
        spread = [any(map(_has_std, column)) for column in zip(*self.rows)]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = zip(self.columns, spread)
        writer.writerow(
            [name for head, wide in heads for name in ([head, f"{head} std"] if wide else [head])]
        )
        for row in self.rows:
            writer.writerow([text for cell, wide in zip(row, spread) for text in _fields(cell, wide)])
        return out.getvalue().rstrip("\n")

    def latex(self) -> str:
        """With the rules of booktabs."""
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in [list(self.columns), *self.cells()]]
        head = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        body = [
            r"\begin{tabular}{l" + "r" * (len(self.columns) - 1) + "}",
            r"\toprule",
            lines[0],
            r"\midrule",
        ]
        notes = [rf"\par\smallskip\footnotesize {_latex(note)}" for note in self.notes]
        tail = [r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}"]
        return "\n".join([*head, *body, *lines[1:], *tail])


def _has_std(cell: Cell) -> bool:
    return isinstance(cell, Number) and cell.value.std is not None


def _fields(cell: Cell, wide: bool) -> list[str]:
    texts = [cell.mean, cell.std] if isinstance(cell, Number) else [cell or "", ""]
    plain = [text.replace(",", "") if isinstance(cell, Number) else text for text in texts]
    return plain if wide else plain[:1]


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{",
        "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": "", "±": r"$\pm$",
        "β": r"$\beta$", "²": "$^2$", "³": "$^3$", "⁷": "$^7$", "·": r"$\cdot$",
    }
)  # fmt: skip


def _latex(text: str) -> str:
    return re.sub(r"(?<![-/\w])l1\b", r"$\\ell_1$", text.translate(_LATEX))


FORMATS: dict[str, Callable[[Sheet], str]] = {
    "markdown": Sheet.markdown,
    "csv": Sheet.csv,
    "latex": Sheet.latex,
}
