# SPDX-License-Identifier: Apache-2.0
"""Does the switch program have room for a fabric?  Each of its tables, before anything is written to a switch.

The sizes are those of p4src/sizes.p4, by the same names; docs/control-plane.md has what each kind of switch holds.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from netfold.fabric.graph import Fabric, FabricError
from netfold.fabric.routing.climbs import Climbs
from netfold.fabric.routing.clos import Clos, paths_of
from netfold.fabric.routing.path_names import path_names
from netfold.fabric.routing.prefixes import prefixes_of
from netfold.wire import roce

ROUTES: Final = 4096
LEAVES: Final = 4096
TCP_PATHS: Final = roce.TCP_SAME_PATH
"""Greatest number of a path that TCP's ports can name; UDP's can name twice as many."""


def check(fabric: Fabric) -> None:
    """Check that the tables have room for a fabric whatever fails in it.  Raises FabricError.  Simulations may be
    larger."""
    graph = fabric.graph()
    whole = paths_of(graph)(graph)
    climbs = Climbs(graph) if isinstance(whole, Clos) else None
    blocks = {} if climbs is None else climbs.block_of
    leaf_of = fabric.leaf_of()
    leaves = dict.fromkeys(leaf_of.values())
    numbered = len(leaves) + len(set(blocks.values()))
    _has(fabric, "leaves", "LEAVES", LEAVES - 1, numbered, "switches with hosts, and pods of them, each with a number "
         "of its own")
    found = [prefixes_of(fabric, leaf_of)]
    if blocks:
        found.append(prefixes_of(fabric, {host: blocks[leaf] for host, leaf in leaf_of.items() if leaf in blocks}))
    prefixes = {prefix for one in found for some in one.values() for prefix in some}
    own = Counter(leaf_of[host.name] for host in fabric.hosts for _ in range(1 + host.rdma) if host.name in leaf_of)
    most = max(leaves, key=lambda leaf: own[leaf] - len(found[0][leaf]), default="")
    routes = len(prefixes) + own[most] + 2
    _has(fabric, most, "ROUTES", ROUTES, routes,
         f"routes: {own[most]} to addresses of its own hosts, {len(prefixes)} for the prefixes of all leaves' and "
         "pods' hosts where failures set each of them apart, a default one and one for probes. Addresses that leaves "
         "share blocks of need fewer")
    kind = "switches above the leaves" if climbs is not None else "switches"
    _has(fabric, "paths", "TCP_SAME_PATH", TCP_PATHS, path_names(whole, climbs).most,
         f"names of paths, one for each of the {kind} where paths turn, and for each link side by side (in pods alike, "
         "one for each spine); TCP has ports for no more")


def _has(fabric: Fabric, where: str, constant: str, have: int, need: int, what: str) -> None:
    if need > have:
        raise FabricError(f"{fabric.name}: {where}: needs room for {need:,} {what}; the switch program has room for "
                          f"{have:,} ({constant} in p4src/sizes.p4). Split the fabric, or simulate it (`netfold sim`)")
