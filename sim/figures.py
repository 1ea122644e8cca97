# SPDX-License-Identifier: Apache-2.0
"""Small multiples of line charts as plain SVG text: no library needed, readable in any browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#666666")
"""Okabe and Ito's palette, told apart by colour-blind eyes too."""

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 190, 56, 64, 72
NEVER = 14
"""Height of the strip above all values where the crosses of those that never finished stand, side by side."""


@dataclass(frozen=True)
class Panel:
    """One chart: for each series a value at each tick; None where there is no result, inf where it never finished."""

    title: str
    ticks: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    empty: str = ""
    """What to say where there is no value at all."""


def small_multiples(title: str, rows: Sequence[Sequence[Panel]], *, x: str, y: str) -> str:
    """An SVG document with one line of charts for each row; the y axes are logarithmic, alike within a row.

    Series have the same colour everywhere; values that never finished are crosses above all others.
    """
    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.series))
    if not names:
        raise ValueError("small_multiples: nothing to draw; expected at least one panel with one series")
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width = max(len(row) for row in rows) * (WIDTH + GAP) + LEFT
    height = len(rows) * (HEIGHT + GAP) + TOP + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>',
             _text(LEFT, 20, title, size=15)]
    for i, name in enumerate(names):
        parts += [f'<rect x="{LEFT + 110 * i}" y="31" width="12" height="12" fill="{colour[name]}"/>',
                  _text(LEFT + 110 * i + 17, 41, name)]
    for r, row in enumerate(rows):
        low, high = _limits([value for panel in row for values in panel.series.values() for value in values])
        for c, panel in enumerate(row):
            parts += _chart(panel, LEFT + c * (WIDTH + GAP), TOP + 20 + r * (HEIGHT + GAP), low, high, colour, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _limits(values: Sequence[float | None]) -> tuple[float, float]:
    finite = [value for value in values if value is not None and 0 < value < math.inf] or [1.0]
    return min(finite) / 1.06, max(finite) * 1.06


def _chart(panel: Panel, left: float, top: float, low: float, high: float, colour: Mapping[str, str], x: str,
           y: str) -> list[str]:
    def at(tick: int, value: float) -> tuple[float, float]:
        across = left + WIDTH * (tick + 0.5) / len(panel.ticks)
        if value == math.inf:
            return across, top + NEVER / 2
        return across, top + NEVER + (HEIGHT - NEVER) * (1 - math.log(value / low) / math.log(high / low))

    never = [name for name, values in panel.series.items() if math.inf in values]
    apart = min(9.0, WIDTH / len(panel.ticks) / max(1, len(never)))
    parts = [f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>',
             _text(left, top - 6, panel.title, size=12), _text(left + WIDTH / 2, top + HEIGHT + 32, x, anchor="middle")]
    for value in _grid(low, high):
        _, height = at(0, value)
        parts += [f'<line x1="{left}" x2="{left + WIDTH}" y1="{height:.1f}" y2="{height:.1f}" stroke="#e5e5e5"/>',
                  _text(left - 5, height + 4, f"{value:g}", anchor="end")]
    parts.append(f'<text transform="translate({left - 38},{top + HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
                 f"{escape(y)}</text>")
    for tick, label in enumerate(panel.ticks):
        parts.append(_text(at(tick, high)[0], top + HEIGHT + 15, label, anchor="middle"))
    if all(value is None for values in panel.series.values() for value in values):
        parts.append(_text(left + WIDTH / 2, top + HEIGHT / 2, panel.empty, anchor="middle"))
    for name, values in panel.series.items():
        points = [(*at(tick, value), value) for tick, value in enumerate(values) if value is not None]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b, value in points if value < math.inf)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour[name]}" stroke-width="2"/>')
        for a, b, value in points:
            if value < math.inf:
                parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour[name]}">'
                             f"<title>{escape(name)}: {value:.4g}</title></circle>")
            else:
                a += apart * (never.index(name) - (len(never) - 1) / 2)
                parts.append(f'<path d="M{a - 4:.1f} {b - 4:.1f} l8 8 m0 -8 l-8 8" stroke="{colour[name]}" '
                             f'stroke-width="2"><title>{escape(name)}: did not finish</title></path>')
    return parts


def _grid(low: float, high: float) -> list[float]:
    """Round values between the limits: 1, 2, 5 in every decade, more where the range is narrow."""
    if high / low < 2.5:
        step = 0.05 if high / low < 1.3 else 0.1 if high / low < 1.7 else 0.2
        step *= 10 ** math.floor(math.log10(high))
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    return [m * 10.0**e for e in range(first, last + 1) for m in steps if low <= m * 10.0**e <= high]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
