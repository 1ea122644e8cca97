# SPDX-License-Identifier: Apache-2.0
"""Draws a fabric with the loads of its links as SVG, for the demo's picture and the controller's page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from xml.sax.saxutils import escape

from netfold.fabric.graph import Fabric

HOST_WIDTH = 96
ROW = {"spine": 70, "agg": 160, "leaf": 250, "host": 430}
HEIGHT = 500
BOX = {"spine": (104, 40), "agg": (104, 40), "leaf": (104, 40), "host": (76, 48)}
FILL = {"spine": "#1f3a5f", "agg": "#285078", "leaf": "#2f6690", "host": "#f3efe6"}
INK = {"spine": "#ffffff", "agg": "#ffffff", "leaf": "#ffffff", "host": "#222222"}
UP, DOWN = "#d1495b", "#3a7d44"
GONE, DRAINED = "#b00020", "#e0a100"
WIDEST = 7.0

Point = tuple[float, float]


class LinkLoad(Protocol):
    """The load of one link, there (a to b) and back, in any unit."""

    @property
    def a(self) -> str: ...
    @property
    def b(self) -> str: ...
    @property
    def there(self) -> float: ...
    @property
    def back(self) -> float: ...
    @property
    def lost(self) -> float:
        """Packets lost by injected faults, both ways."""


def draw(
    fabric: Fabric,
    loads: Sequence[LinkLoad],
    title: str,
    words: Callable[[float], str],
    *,
    full: float = 1.0,
    down: Collection[str] = (),
    drained: Collection[str] = (),
) -> str:
    """The whole SVG document: spines above leaves above hosts; a link is two lines, as thick as it is busy.

    words          a load as text
    full           the load that has the widest line, unless there is a greater one
    down, drained  names of switches, and of links by their first end, which are drawn as such
    """
    width = max(len(fabric.hosts) * HOST_WIDTH, len(fabric.switches) * 80, 560) + 40
    places = _places(fabric, width)
    most = max([full, *(n for load in loads for n in (load.there, load.back))])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="16" fill="#222">{escape(title)}</text>',
        _legend(width),
    ]
    mark = {**dict.fromkeys(drained, DRAINED), **dict.fromkeys(down, GONE)}
    parts += [_link(load, places, fabric, most, words, mark.get(load.a)) for load in loads]
    parts += [_box(node.name, _kind(fabric, node.name), places[node.name], node.address, mark.get(node.name))
              for node in fabric.nodes]
    return "\n".join([*parts, "</svg>", ""])


def _places(fabric: Fabric, width: float) -> dict[str, Point]:
    """Centres: spines and leaves spread over their rows, hosts in order."""
    rows: dict[str, list[str]] = {kind: [] for kind in ROW}
    for node in fabric.nodes:
        rows[_kind(fabric, node.name)].append(node.name)
    return {
        name: (width * (i + 0.5) / len(names), float(ROW[kind]))
        for kind, names in rows.items()
        for i, name in enumerate(names)
    }


def _kind(fabric: Fabric, name: str) -> str:
    return next((switch.role for switch in fabric.switches if switch.name == name), "host")


def _link(
    load: LinkLoad,
    places: dict[str, Point],
    fabric: Fabric,
    most: float,
    words: Callable[[float], str],
    mark: str | None,
) -> str:
    """Two parallel lines, up and down, and what they carry, near the lower end; under a dashed one in ``mark``."""
    a, b = load.a.rpartition(":")[0], load.b.rpartition(":")[0]
    up, down = load.there, load.back
    if places[a][1] < places[b][1]:
        a, b, up, down = b, a, down, up
    (x1, y1), (x2, y2) = places[a], places[b]
    lines = "".join(
        f'<line x1="{x1 + shift:.1f}" y1="{y1:.1f}" x2="{x2 + shift:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{max(0.75, WIDEST * count / most):.2f}" stroke-opacity="0.75"/>'
        for shift, colour, count in ((-5, UP, up), (5, DOWN, down))
    )
    # a third of the way up, where the lines of one switch have parted and those of its neighbours are not near yet
    share = 0.42 if _kind(fabric, a) == "host" else 0.34
    x, y = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
    text = "".join(
        f'<text x="{x:.1f}" y="{y + below:.1f}" text-anchor="middle" font-size="10" fill="{colour}" '
        f'font-weight="bold">{arrow} {escape(words(count))}</text>'
        for below, colour, arrow, count in ((-2, UP, "↑", up), (10, DOWN, "↓", down))
    )
    plate = f'<rect x="{x - 30:.1f}" y="{y - 13:.1f}" width="60" height="27" rx="4" fill="#ffffff" opacity="0.88"/>'
    title = f"<title>{escape(load.a)} - {escape(load.b)}, {load.lost} packets lost on purpose</title>"
    under = "" if mark is None else (
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{mark}" stroke-width="{2 * WIDEST}" '
        'stroke-dasharray="8 6" stroke-opacity="0.6"/>')
    return f"<g>{title}{under}{lines}{plate}{text}</g>"


def _box(name: str, kind: str, place: Point, address: str, mark: str | None) -> str:
    (x, y), (w, h) = place, BOX[kind]
    return (
        f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w}" height="{h}" rx="6" fill="{FILL[kind]}" '
        f'stroke="{mark or "#222"}" stroke-width="{1 if mark is None else 5}"/>'
        f'<g text-anchor="middle" fill="{INK[kind]}">'
        f'<text x="{x:.1f}" y="{y - 2:.1f}" font-weight="bold">{escape(name)}</text>'
        f'<text x="{x:.1f}" y="{y + 13:.1f}" font-size="9">{escape(address)}</text></g>'
    )


def _legend(width: float) -> str:
    return (
        f'<text x="{width - 20}" y="28" text-anchor="end" fill="{UP}">contributions, up'
        f'<tspan fill="{DOWN}" dx="14">sums, down</tspan></text>'
    )
