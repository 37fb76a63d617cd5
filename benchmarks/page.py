"""Pages of the documentation whose tables are made from results/."""

from __future__ import annotations

import re
from pathlib import Path

from weightshare.atomic import replacing


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(page: str, texts: dict[str, str]) -> str:
    """The page with each text between its markers.

    >>> filled("<!-- x -->old<!-- end -->", {"x": "new"})
    '<!-- x -->\\n\\nnew\\n\\n<!-- end -->'
    """
    for name, text in texts.items():
        parts = re.split(rf"(<!-- {re.escape(name)} -->).*?(<!-- end -->)", page, flags=re.S)
        if len(parts) != 4:
            raise ValueError(f"the page must have one place between <!-- {name} --> and <!-- end -->")
        page = "".join([*parts[:2], "\n\n", text, "\n\n", *parts[2:]])
    return page


def fill(path: Path, texts: dict[str, str]) -> None:
    """Put texts between the markers of a page."""
    page = filled(path.read_text(), texts)
    with replacing(path) as file:
        file.write(page.encode())
