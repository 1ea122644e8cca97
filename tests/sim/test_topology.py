# SPDX-License-Identifier: Apache-2.0
"""Fabrics by number: routes are walks through the same fabric as a graph."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.generate import leafspine, parse
from netfold.fabric.generate.uplinks import Uplink
from netfold.fabric.routing.clos import Clos
from netfold.sim.engines.topology import ClosCable, Topology, large_fat_tree, leaf_spine, of_fabric, paper_fat_tree

SIZES = st.builds(lambda hosts, leaves, aggs, pods, cores: Topology(
    hosts=hosts, leaves=leaves, aggs=aggs, pods=pods, cores=cores if pods > 1 else 0),
                  st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@given(topology=SIZES, data=st.data())
def test_a_route_is_a_walk_from_host_to_host(topology, data) -> None:
    """Each directed link starts where the one before ended, and every path of a pair is another one."""
    ends: dict[int, tuple[str, str]] = {}
    blocks = topology.blocks
    for low, high, number in topology.graph().edges(keys=True):
        low, high = sorted((low, high), key=lambda n: ["h", "l", "a", "c"].index(n[0]))
        block = 0 if low[0] == "h" else 2 if low[0] == "l" else 4
        ends[number] = (low, high)
        ends[number + blocks[block]] = (high, low)
    assert sorted(ends) == list(range(topology.links))
    a, b = (data.draw(st.integers(0, topology.size - 1)) for _ in range(2))
    count = topology.paths(topology.leaf(a), topology.leaf(b))
    routes = [topology.route(a, b, path) for path in range(count)]
    for route in routes:
        nodes = [ends[route[0]][0], *(ends[link][1] for link in route)]
        assert [ends[link][0] for link in route] == nodes[:-1]
        assert (nodes[0], nodes[-1]) == (f"h{a}", f"h{b}")
    assert len({tuple(route) for route in routes}) == count


@given(topology=SIZES.filter(lambda t: t.pods > 1), dead=st.data())
def test_shares_are_the_planners_weights(topology, dead) -> None:
    """The closed form for a regular fabric equals the controller's max-min weights on its graph."""
    cables = [ClosCable("core", p, a, c) for p in range(topology.pods) for a in range(topology.aggs)
              for c in range(topology.cores)]
    out = dead.draw(st.sets(st.sampled_from(cables), max_size=2))
    topology = replace(topology, leaf_rate=dead.draw(st.sampled_from([400e9, 1200e9])))
    gone = topology.dead(out)
    live = topology.live_paths(0, topology.leaves, gone)
    clos = Clos(topology.graph(), dead_links={topology.directions(cable)[0] for cable in out})
    if not live:
        return
    paths = clos.paths("leaf0", f"leaf{topology.leaves}")
    weights = clos.weights(paths)
    shares = topology.shares(live, 0, topology.leaves)
    assert sorted(weights) == sorted(shares)
    assert sum(shares) == sum(weights, Fraction(0))


def test_the_papers_fabrics_have_the_papers_sizes() -> None:
    """256 hosts on 16 x 16; 512 hosts, 32 leaves, 32 aggs, 16 cores; none oversubscribed."""
    two, three, large = leaf_spine(), paper_fat_tree(), large_fat_tree()
    assert (two.size, two.leaves, two.aggs) == (256, 16, 16)
    assert (three.size, three.leaves * three.pods, three.aggs * three.pods) == (512, 32, 32)
    assert three.aggs * three.cores == 16
    assert large.size == 16384
    for t in (two, three, large):
        assert t.hosts * t.host_rate == t.aggs * t.leaf_rate
        assert t.pods == 1 or t.leaves * t.leaf_rate == t.cores * t.core_rate


@pytest.mark.parametrize(("sizes", "says"), [
    ({"hosts": 0}, "hosts"), ({"pods": 2}, "more than one pod needs cores"), ({"cores": 2}, "one pod has none"),
    ({"leaf_rate": 0}, "leaf_rate"), ({"delay": -1}, "delay")])
def test_impossible_fabrics_are_refused(sizes, says) -> None:
    """Each mistake is named."""
    with pytest.raises(ValueError, match=says):
        Topology(**sizes)


def test_cables_that_are_not_there_are_refused() -> None:
    """A failure of a link that does not exist would be no failure at all."""
    for cable in (ClosCable("leaf", 16, 0), ClosCable("leaf", 0, 16), ClosCable("core", 0, 0, 0)):
        with pytest.raises(ValueError, match="16 leaves with 16 uplinks"):
            leaf_spine().directions(cable)


def test_a_fabric_file_becomes_a_topology() -> None:
    """A fabric that runs in Mininet can be simulated: same sizes, same rates; irregular ones are refused."""
    fab = leafspine(4, 4, 16, rate="1gbit")
    assert of_fabric(fab, delay=1e-5) == leaf_spine(hosts=16, leaves=4, spines=4, rate=1e9, delay=1e-5)
    with pytest.raises(ValueError, match="equally many hosts"):
        of_fabric(leafspine(4, 4, 15, rate="1gbit"), delay=1e-5)
    with pytest.raises(ValueError, match="give `rate`"):
        of_fabric(leafspine(2, 2, 4), delay=1e-5)
    assert of_fabric(leafspine(2, 2, 4), delay=0, rate=1e8).leaf_rate == 1e8
    slower = msgspec.structs.replace(fab, links=(*fab.links[:-1], msgspec.structs.replace(fab.links[-1], rate="1mbit")))
    irregular = of_fabric(slower, delay=0)
    assert irregular.uplink(3, 3) == 1e6
    assert sorted(irregular.uplinks) == [1e6, *[1e9] * 15]
    unequal = leafspine(2, 3, 4, uplinks=[Uplink(2, "100mbit"), Uplink(1, "1gbit"), Uplink()], rate="500mbit")
    assert of_fabric(unequal, delay=0).uplinks == (200e6, 1e9, 500e6)
    with pytest.raises(ValueError, match="netfold sim fabric"):
        of_fabric(parse("mesh,2,2", rate="1gbit"), delay=0)


@given(topology=SIZES, rates=st.data())
def test_unequal_uplinks_have_the_planners_weights(topology, rates) -> None:
    """Inside a pod and beyond it, and links have the rates that they are given."""
    number = topology.blocks[2] if rates.draw(st.booleans()) else topology.aggs
    uplinks = tuple(rates.draw(st.sampled_from([100e9, 200e9, 400e9])) for _ in range(number))
    topology = replace(topology, uplinks=uplinks)
    assert [topology.rate(link) for link in range(topology.links)] == topology.rates().tolist()
    clos = Clos(topology.graph())
    for to in {min(1, topology.leaves - 1), topology.leaves * topology.pods - 1} - {0}:
        live = topology.live_paths(0, to, frozenset())
        shares, weights = topology.shares(live, 0, to), clos.weights(clos.paths("leaf0", f"leaf{to}"))
        assert sorted(share / sum(shares) for share in shares) == sorted(weight / sum(weights) for weight in weights)
