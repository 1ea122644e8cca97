# SPDX-License-Identifier: Apache-2.0
"""The numbers of paths, which source ports carry: for each switch where paths turn, one that all pairs of leaves share.

In three tiers a number has two digits where it can.  The lower one is the plane: the aggregation switches that the same
cores join, of which a leaf has one uplink each.  The upper one is the core in its plane.

    number = core * size + plane      plane 1 .. size, core 0 .. ; size: a power of two

So a leaf distinguishes planes alone, an aggregation switch its cores, and a path inside a pod has the number of core 0
of its plane.  Elsewhere (two tiers, meshes) each switch has a number, and those of each further layer follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from netfold.fabric.routing.climbs import Climbs
from netfold.fabric.routing.path_graph import PathGraph


class PathNames(NamedTuple):
    """The numbers of a fabric's paths."""

    numbers: Mapping[str, int]
    """By the switch in the middle: the number of its path in the first layer, from 1."""
    most: int
    """The greatest number."""
    planes: int
    """The size of the lower digit, a power of two; 0 where numbers have no digits."""

    def digit(self, number: int) -> int:
        """The lower digit of a number, 0 for the last plane; the number itself where there are none."""
        return number & self.planes - 1 if self.planes else number


def path_names(whole: PathGraph, climbs: Climbs | None) -> PathNames:
    """The numbers of a fabric's paths, with nothing down.

    climbs  of the same fabric, where it is a Clos
    """
    found = None if climbs is None else _by_planes(climbs)
    if found is not None:
        return found
    middles = whole.middles
    return PathNames({switch: number for number, switch in enumerate(middles, 1)}, len(middles) * whole.layers, 0)


def _by_planes(climbs: Climbs) -> PathNames | None:
    """Numbers with two digits; None if a leaf has several uplinks to a plane, or there are not three tiers."""
    if not climbs.is_regular or max(climbs.tier.values(), default=1) != 3:
        return None
    plane_of: dict[str, int] = {}
    planes = 0
    for start in climbs.name_bit:
        if start not in plane_of:
            planes += 1
            plane_of[start], pending = planes, [start]
            for switch in pending:
                for line in (*climbs.up[switch], *climbs.down[switch]):
                    if line.hop.node in climbs.name_bit and line.hop.node not in plane_of:
                        plane_of[line.hop.node] = planes
                        pending.append(line.hop.node)
    for leaf in climbs.leaf_bit:
        mine = [plane_of[line.hop.node] for line in climbs.up[leaf]]
        if len(set(mine)) < len(mine):
            return None
    size = 1 << (planes - 1).bit_length()
    cores: Counter[int] = Counter()
    numbers: dict[str, int] = {}
    for switch, plane in plane_of.items():
        numbers[switch] = plane
    for switch in climbs.name_bit:
        if climbs.tier[switch] == 3:
            numbers[switch] = cores[plane_of[switch]] * size + plane_of[switch]
            cores[plane_of[switch]] += 1
    return PathNames(numbers, max(numbers.values()), size)
