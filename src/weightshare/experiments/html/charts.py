"""Charts as inline SVG, images as data URIs: readable in light and in dark, with no script and no network.

Text and axes are drawn in ``currentColor``; series have the classes ``s0``, ``s1``, ... that the page's style
gives colours to, and a mark of their own at the end, for those who do not tell the colours apart. All text
goes through :func:`html.escape`.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

COLOURS = 8
"""The page has so many colours for series; more series begin again, with dashes."""

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40


@dataclass(frozen=True)
class Series:
    """A line: which colour, where."""

    name: str
    number: int
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """A range of numbers on a stretch of the picture."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers within a range, about ``count`` of them.

    >>> nice_ticks(0.0, 1.0), nice_ticks(3, 47)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, every other one where there are many; in a narrow range also others.

    >>> log_ticks(1, 2e6), log_ticks(3, 60), log_ticks(41, 69)
    ([1.0, 100.0, 10000.0, 1000000.0], [5.0, 10.0, 20.0, 50.0], [50.0, 60.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [f * 10.0**e for e in range(first, last + 1) for f in factors]
    inside = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
    if len(inside) < 2:
        return nice_ticks(low, high, 3)
    return inside[:: max(1, math.ceil(len(inside) / 6))]


def short(value: float) -> str:
    """A number in few characters.

    >>> [short(v) for v in (0.25, 1000, 12500, 2e6, 0)]
    ['0.25', '1k', '12.5k', '2M', '0']
    """
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{mark}"
    return f"{value:.4g}"


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    of: str = "",
    log: bool = False,
    percent: bool = False,
) -> str:
    """Lines over a common range; ``log``: on a logarithmic vertical scale, ``percent``: of shares.

    ``of`` is what the chart is about, for those who hear the page: they are told where each line ends.
    """
    points = [(x, y) for s in series for x, y in zip(s.x, s.y) if y > 0 or not log]
    if not points:
        return ""
    x_axis = Axis(min(x for x, _ in points), max(x for x, _ in points), LEFT, WIDTH - RIGHT)
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = (low / 1.3, high * 1.3) if log else _with_margin(low, high)
    if percent:
        low, high = max(low, 0.0), min(high, 1.0)
    y_axis = Axis(low, high, HEIGHT - BOTTOM, TOP, log)
    shown: Callable[[float], str] = (lambda v: f"{100 * v:.4g}%") if percent else short
    parts = [_frame(x_axis, y_axis, x_label, y_label, shown)]
    ends = []
    for s in series:
        places = [(x_axis(x), y_axis(y)) for x, y in zip(s.x, s.y) if y > 0 or not log]
        if not places:
            continue
        parts.append(f"<g><title>{escape(s.name)}</title>{_line(s.number, places)}</g>")
        ends.append(f"{s.name} {shown(s.y[-1])}")
    heading = f"{y_label}{f' of {of}' * bool(of)} against {x_label}"
    return _svg(f"{heading}; at the end: {', '.join(ends)}", parts)


def _line(number: int, places: Sequence[tuple[float, float]]) -> str:
    """A line with the mark of its series at the end."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = " dashed" * (number >= COLOURS)
    line = f'<polyline class="line s{number % COLOURS}{style}" points="{points}"/>' * (len(places) > 1)
    return line + mark(number, *places[-1])


_MARKS = (
    "M{l} {y}A{r} {r} 0 1 1 {h} {y}A{r} {r} 0 1 1 {l} {y}Z",  # circle
    "M{l} {t}H{h}V{b}H{l}Z",  # square
    "M{x} {t}L{h} {b}H{l}Z",  # triangle
    "M{x} {t}L{h} {y}L{x} {b}L{l} {y}Z",  # diamond
)


def mark(number: int, x: float, y: float, r: float = 4.0) -> str:
    """The mark of a series: one of four shapes, filled or hollow."""
    place = {"x": x, "y": y, "l": x - r, "h": x + r, "t": y - r, "b": y + r, "r": r}
    shape = _MARKS[number % len(_MARKS)].format(**{name: f"{value:.1f}" for name, value in place.items()})
    hollow = " hollow" * (number // len(_MARKS) % 2)
    return f'<path class="mark s{number % COLOURS}{hollow}" d="{shape}"/>'


def histogram(before: np.ndarray | None, after: np.ndarray, number: int, of: str = "", bins: int = 81) -> str:
    """Counts of weights by value, on a logarithmic scale: before as an outline, after as bars.

    Values that are farther out than all but one in a thousand are counted in the outermost bins.
    """
    both = [a for a in (before, after) if a is not None]
    ends = [np.quantile(a, (0.0005, 0.9995)) for a in both]
    low, high = float(min(e[0] for e in ends)), float(max(e[1] for e in ends))
    if high <= low:
        low, high = low - 1e-6 - abs(low) / 2, high + 1e-6 + abs(high) / 2
    counts = [np.histogram(np.clip(a, low, high), bins, (low, high))[0] for a in both]
    top = max(float(c.max()) for c in counts)
    x_axis = Axis(low, high, LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.6, max(top, 2.0) * 1.3, HEIGHT - BOTTOM, TOP, log=True)
    parts = [_frame(x_axis, y_axis, "weight", "number of weights", short)]
    edges = [x_axis(low + (high - low) * i / bins) for i in range(bins + 1)]
    floor = HEIGHT - BOTTOM
    bars = [
        f"M{edges[i]:.1f} {floor}V{y_axis(float(c)):.1f}H{edges[i + 1]:.1f}V{floor}Z"
        for i, c in enumerate(counts[-1])
        if c
    ]
    parts.append(f'<path class="bars s{number % COLOURS}" d="{"".join(bars)}"><title>after</title></path>')
    if before is not None:
        heights = [y_axis(float(max(c, 0.6))) for c in counts[0]]
        outline = "".join(f"V{h:.1f}H{edges[i + 1]:.1f}" for i, h in enumerate(heights))
        parts.append(
            f'<path class="outline" d="M{edges[0]:.1f} {floor}{outline}V{floor}"><title>before</title></path>'
        )
    return _svg(f"histogram of weights{f' of {of}' * bool(of)}, before and after training", parts)


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _frame(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str, shown: Callable[[float], str]) -> str:
    """Grid lines, ticks and labels."""
    parts = []
    y_ticks = log_ticks(y_axis.low, y_axis.high) if y_axis.log else nice_ticks(y_axis.low, y_axis.high)
    for tick in y_ticks:
        y = y_axis(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(shown(tick))}</text>')
    for tick in nice_ticks(x_axis.low, x_axis.high):
        x = x_axis(tick)
        parts.append(f'<path class="axis" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{escape(short(tick))}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f"translate(11 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"
    parts.append(f'<text transform="{turned}" text-anchor="middle">{escape(y_label)}</text>')
    return "".join(parts)


def _svg(label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def png(pixels: np.ndarray) -> str:
    """An image of shape (height, width, 4) and dtype uint8 (red, green, blue, alpha) as a data URI."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 4 * width), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
