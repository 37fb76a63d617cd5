"""One self-contained HTML page about any runs, side by side: no network, no scripts, light and dark."""

from weightshare.experiments.html.report import render, write

__all__ = ["render", "write"]
