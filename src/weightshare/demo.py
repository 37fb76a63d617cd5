"""``make demo``: the prox at work on a handful of weights, as a table and as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import weightshare as ws


def weights() -> torch.Tensor:
    """Three loose groups, one of them around zero, and two weights by themselves."""
    generator = torch.Generator().manual_seed(7)
    groups = [(-1.1, 0.09, 9), (0.0, 0.05, 8), (0.9, 0.11, 9)]
    parts = [c + s * torch.randn(n, generator=generator) for c, s, n in groups]
    return torch.cat([*parts, torch.tensor([0.45, 1.8])])


def table(w: torch.Tensor, alpha: float, beta: float, rho: float) -> None:
    """Print the clusters of one prox."""
    from rich.console import Console
    from rich.table import Table

    p, clusters = ws.prox(w, alpha, beta, rho, return_clusters=True)
    before, after = clusters.means(w).tolist(), clusters.means(p).tolist()
    view = Table(title=f"prox(w, alpha={alpha}, beta={beta}, rho={rho})", title_justify="left")
    for name in ("cluster", "weights", "their mean", "shared value"):
        view.add_column(name, justify="right")
    for c, size in enumerate(clusters.sizes.tolist()):
        view.add_row(str(c), str(size), f"{before[c]:+.4f}", f"{after[c]:+.4f}")
    console = Console()
    console.print(view)
    console.print(
        f"{clusters!r}; R {float(ws.penalty(w)):.3f} -> {float(ws.penalty(p)):.3f}\n",
        highlight=False,
    )


def picture(w: torch.Tensor, alpha: float, path: Path) -> None:
    """Draw the sticky particles on their way from the weights to the prox."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    motion = ws.particles(w, alpha)
    motion.plot(axes, color="#2b6cb0")
    axes.scatter(torch.zeros(w.numel()), w, s=14, color="#1a202c", zorder=3)
    end, clusters = ws.prox(w, alpha, return_clusters=True)
    axes.scatter(torch.ones(w.numel()), end, s=14, color="#c53030", zorder=3)
    axes.set_title(
        f"{w.numel()} weights meet and stick: {clusters.count} values are left at time 1, the prox"
    )
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Run the demonstration; ``--out`` names the folder for the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for the picture (default: demo)"
    )
    path = parser.parse_args().out / "particles.png"
    w = weights()
    table(w, alpha=0.5, beta=0.0, rho=0.0)
    table(w, alpha=0.5, beta=0.1, rho=0.9)
    picture(w, 0.5, path)
    print(f"sticky particles: {path}")


if __name__ == "__main__":
    main()
