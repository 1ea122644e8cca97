# SPDX-License-Identifier: Apache-2.0
"""A fabric for which the switch program has no room is refused, with what is needed and what there is."""

from __future__ import annotations

import msgspec
import pytest

from netfold.fabric.generate import leafspine, parse
from netfold.fabric.graph import Fabric, FabricError
from netfold.fabric.routing import room
from netfold.fabric.routing.climbs import Climbs
from netfold.fabric.routing.clos import Clos
from netfold.fabric.routing.path_names import path_names


def shuffled(fabric: Fabric) -> Fabric:
    """The same with the addresses of hosts dealt out, so that no leaf has a block of its own."""
    addresses = [host.address for host in fabric.hosts]
    leaves = len({*fabric.leaf_of().values()})
    dealt = [address for first in range(leaves) for address in addresses[first::leaves]]
    return msgspec.structs.replace(fabric, hosts=tuple(
        msgspec.structs.replace(host, address=address) for host, address in zip(fabric.hosts, dealt, strict=True)))


@pytest.mark.slow
def test_a_thousand_switches_have_room() -> None:
    """Whatever fails in them; hosts count at their own leaf alone, where leaves have blocks of addresses."""
    room.check(parse("threetier,32,16,16,256,8192"))
    room.check(parse("mesh,12,12"))


@pytest.mark.long
def test_five_thousand_switches_in_pods_have_room() -> None:
    """A fat tree of 64 ports: its paths have the numbers of its 1,024 spines, which is the most, inside pods too.
    Smaller ones below show the numbers of spines, and the most."""
    room.check(parse("threetier,64,32,32,1024,2048"))


def test_paths_of_pods_have_the_numbers_of_spines() -> None:
    """A fat tree of 16 ports has a number for each of its 64 spines, in eight planes."""
    whole = parse("threetier,16,8,8,64,128").graph()
    names = path_names(Clos(whole), Climbs(whole))
    assert (names.most, names.planes) == (64, 8)


def test_more_paths_than_have_names_are_refused() -> None:
    """A TCP connection over a path without a name would be hashed, and nobody told."""
    with pytest.raises(FabricError, match=r"paths: needs room for 1,025 names.*has room for 1,024 \(TCP_SAME_PATH"):
        room.check(parse("mesh,25,41"))
    room.check(parse("mesh,32,32"))
    many = parse("leafspine,2,16,4,uplinks=" + ":".join(["9"] * 16))
    with pytest.raises(FabricError, match=r"needs room for 1,296 names"):
        room.check(many)


def test_more_routes_than_a_switch_has_room_for_are_refused() -> None:
    """Where addresses of leaves are mixed, a leaf may need a route to each host."""
    fabric = leafspine(40, 2, 6000)
    room.check(fabric)
    with pytest.raises(FabricError, match=r"needs room for 6,152 routes: 150 .*has room for 4,096 \(ROUTES in"):
        room.check(shuffled(fabric))
