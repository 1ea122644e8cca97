# SPDX-License-Identifier: Apache-2.0
"""Two-dimensional meshes and tori of switches, and the order of a ring along their links.

    h1    h2    h3        Accelerators on a mesh are linked to their neighbours, and forward what is for others.
    |     |     |         Here an accelerator is a host and the switch at its place: the switch is the part of it that
    r1c1--r1c2--r1c3      forwards, and the host's link the way between the two, as fast as all of the switch's other
    |     |     |         links together, so that the mesh's links are the only ones that can be short.
    r2c1--r2c2--r2c3
    |     |     |         A torus has one more link in each row and column of three places or more, from the last place
    h4    h5    h6        to the first; between two places there is one link already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from netfold.fabric.generate.assemble import Edge, FabricOptions, Site, assemble
from netfold.fabric.graph import Fabric, FabricError, bits_per_second

if TYPE_CHECKING:
    import networkx as nx

Place = tuple[int, int]
"""Row and column, from 0."""


def mesh(height: int, width: int, **options: Unpack[GridOptions]) -> Fabric:
    """Switches r1c1, r1c2, ... with hosts h1, h2, ... row by row, linked to their neighbours.  Raises FabricError."""
    return _grid("mesh", height, width, False, **options)


def torus(height: int, width: int, **options: Unpack[GridOptions]) -> Fabric:
    """A `mesh` whose rows and columns are closed to rings."""
    return _grid("torus", height, width, True, **options)


class GridOptions(FabricOptions, total=False):
    """Options of `mesh` and `torus`."""

    hosts: int
    """Hosts at each place; default: 1, as accelerators have it."""
    rows: str | None
    """Rate of the links along rows; None: that of all links."""
    columns: str | None
    """Rate of the links along columns."""
    host: str | None
    """Rate of a host's link; None: that of all other links of its switch together."""


def _grid(kind: str, height: int, width: int, wraps: bool, *, hosts: int = 1, rows: str | None = None,
          columns: str | None = None, host: str | None = None, **options: Unpack[FabricOptions]) -> Fabric:
    if height < 1 or width < 1 or hosts < 1:
        raise FabricError(f"{kind}: expected at least 1 row, 1 column and 1 host at each place, got {height}, {width} "
                          f"and {hosts}")
    common = options.get("rate")
    along = {"rows": rows or common, "columns": columns or common}
    cables = [Edge(_name(a), _name(b), along["rows" if a[0] == b[0] else "columns"])
              for a, b in neighbours(height, width, wraps=wraps)]
    rates: dict[str, list[str | None]] = defaultdict(list)
    for cable in cables:
        rates[cable.a].append(cable.rate)
        rates[cable.b].append(cable.rate)
    places = [(row, column) for row in range(height) for column in range(width)]
    switches = [Site(_name(place), "leaf", (None,) * hosts, (host or _together(rates[_name(place)]),) * hosts, place)
                for place in places]
    return assemble(f"{kind}-{height}-{width}", switches, cables, **options)


def neighbours(rows: int, columns: int, *, wraps: bool = False) -> Iterator[tuple[Place, Place]]:
    """The pairs of neighbouring places, each once: of each place that to its right and that below."""
    for row in range(rows):
        for column in range(columns):
            if column + 1 < columns or (wraps and columns > 2):
                yield (row, column), (row, (column + 1) % columns)
            if row + 1 < rows or (wraps and rows > 2):
                yield (row, column), ((row + 1) % rows, column)


def cycle(rows: int, columns: int) -> list[Place]:
    """All places in an order in which each is the neighbour of the next.

    The last one is the neighbour of the first where rows or columns are even in number; odd grids, and lines, have no
    such cycle.
    """
    if rows == 1 or columns == 1:
        return [(row, column) for row in range(rows) for column in range(columns)]
    if rows % 2 and not columns % 2:
        return [(row, column) for column, row in cycle(columns, rows)]
    snake: list[Place] = []
    for row in range(rows):  # the first column is left free for the way back
        inner = [(row, column) for column in range(1, columns)]
        snake += inner if row % 2 == 0 else inner[::-1]
    return [*((row, 0) for row in range(rows - 1, -1, -1)), *snake]


def mesh_of(graph: nx.MultiGraph[str], hosts: Sequence[str]) -> list[list[int]]:
    """The ranks row by row, where their switches make up a whole mesh of linked neighbours with one rank at each place,
    or a rectangle of a larger one; else nothing.

    graph  `Fabric.graph`, less whatever is down;  hosts  node of each rank
    """
    at: dict[Place, tuple[int, str]] = {}
    for rank, host in enumerate(hosts):
        switch = next(iter(graph.adj[host]), None) if host in graph else None
        place = None if switch is None else graph.nodes[switch].get("place")
        if switch is None or place is None or place in at:
            return []
        at[place] = rank, switch
    if len(at) < 2:
        return []
    top, left = min(row for row, _ in at), min(column for _, column in at)
    rows, columns = (1 + max(place[axis] for place in at) - low for axis, low in enumerate((top, left)))
    if rows * columns != len(at):
        return []
    linked = all(graph.has_edge(at[top + a[0], left + a[1]][1], at[top + b[0], left + b[1]][1])
                 for a, b in neighbours(rows, columns))
    return [[at[top + row, left + column][0] for column in range(columns)] for row in range(rows)] if linked else []


def ring_along(ranks: Sequence[Sequence[int]]) -> list[int]:
    """The ranks of `mesh_of` in the order of a ring along the mesh's links."""
    return [ranks[row][column] for row, column in cycle(len(ranks), len(ranks[0]))]


def _name(place: Place) -> str:
    return f"r{place[0] + 1}c{place[1] + 1}"


def _together(rates: Sequence[str | None]) -> str | None:
    """The sum of rates; None where one of them is not limited, or there is none."""
    stated = [rate for rate in rates if rate is not None]
    return f"{sum(map(bits_per_second, stated))}bit" if stated and len(stated) == len(rates) else None
