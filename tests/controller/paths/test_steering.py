# SPDX-License-Identifier: Apache-2.0
"""Source ports and the paths they name; modes, drained links and suspicions, as state and as entries."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.paths.steering import CLEAR_INTERVAL, SUSPECT_SECONDS, Steering
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.path_tables import NO_PORT, Forwarding
from netfold.fabric.generate import leafspine, threetier
from netfold.fabric.graph import Fabric
from netfold.fabric.routing.clos import Clos, Path
from netfold.wire import roce
from netfold.wire.paths import tcp_ports
from support.control import ways
from support.control.cables import link_between


def path_over(steering: Steering, *switches: str) -> Path:
    """The path that visits these switches."""
    a, *_, b = switches
    found = steering.ports(Clos(steering.fabric.graph()), a, b).values()
    return next(path for path in found if (a, *(hop.head for hop in path)) == switches)


def without(fabric: Fabric, *links: int) -> nx.MultiGraph[str]:
    """The graph with some links gone."""
    graph = fabric.graph()
    graph.remove_edges_from([edge for edge in graph.edges(keys=True) if edge[2] in links])
    return graph


def walk(
    fabric: Fabric, planned: dict[str, Forwarding], source: str, destination: str, source_port: int, steps: int = 1
) -> list[str]:
    """The switches that so many steps of packets with this port lead through."""
    far = {a: b.node for link in fabric.links for a, b in (link.ends, link.ends[::-1])}
    seen = [source]
    for _ in range(steps):
        at = planned[seen[-1]]
        hops = at.hops(destination)
        port = hops[0].port if len(hops) == 1 else ways.pinned(at, destination, source_port)
        seen.append(next(node for end, node in far.items() if end.node == seen[-1] and end.port == port))
    return seen


@given(st.integers(2, 4), st.integers(1, 5), st.data())
def test_every_port_leads_over_its_path(leaves: int, spines: int, data: st.DataObject) -> None:
    """Whatever uplinks are dead: pins follow the planner's path hop by hop, and ports keep their meaning."""
    fabric = leafspine(leaves, spines, leaves)
    uplinks = [n for n, link in enumerate(fabric.links) if "spine" in link.b]
    graph = without(fabric, *data.draw(st.sets(st.sampled_from(uplinks), max_size=len(uplinks) // 2)))
    steering = Steering(fabric)
    clos, whole, planned = steering.left(graph), Clos(fabric.graph()), ways.plan(steering, graph)
    for a in clos.leaves:
        for b in clos.leaves:
            if a == b or not clos.reaches(a, b):
                continue
            named = steering.ports(whole, a, b)
            for port, path in steering.ports(clos, a, b).items():
                assert port > roce.PATH_PORT
                if len(path) == 2:
                    assert named[port] == path
                assert walk(fabric, planned, a, b, port, len(path) // 2) == [
                    a, *(hop.head for hop in path[: len(path) // 2])]


def test_three_tiers_are_pinned_at_leaf_and_pod() -> None:
    """Across pods a port names a core, and both tiers on the way up pin it; inside a pod it names a spine."""
    fabric = threetier(2, 2, 2, 2, 8)
    steering = Steering(fabric)
    clos, planned = steering.left(fabric.graph()), ways.plan(steering, fabric.graph())
    lengths = set()
    for a in clos.leaves:
        for b in clos.leaves:
            for port, path in ({} if a == b else steering.ports(clos, a, b)).items():
                lengths.add(len(path))
                assert walk(fabric, planned, a, b, port, len(path) // 2) == [
                    a, *(hop.head for hop in path[: len(path) // 2])]
    assert lengths == {2, 4}
    assert {switch for switch, here in planned.items() if here.pins} >= set(clos.leaves)


@given(st.integers(2, 4), st.integers(1, 5), st.data())
def test_every_tcp_port_leads_somewhere(leaves: int, spines: int, data: st.DataObject) -> None:
    """Over its own path where that is left, else over one that is, as long as the two leaves are connected."""
    fabric = leafspine(leaves, spines, leaves)
    uplinks = [n for n, link in enumerate(fabric.links) if "spine" in link.b]
    graph = without(fabric, *data.draw(st.sets(st.sampled_from(uplinks), max_size=len(uplinks) // 2)))
    steering = Steering(fabric)
    clos, whole, planned = steering.left(graph), Clos(fabric.graph()), ways.plan(steering, graph)
    for a in clos.leaves:
        for b in clos.leaves:
            if a == b or not clos.reaches(a, b):
                continue
            left = {port: path[0].head for port, path in steering.ports(clos, a, b).items()}
            for port in steering.ports(whole, a, b):
                name, _ = tcp_ports(port)
                (_, over) = walk(fabric, planned, a, b, name)
                assert over == left.get(port, over)
                assert over in left.values()


def test_a_suspicion_ends() -> None:
    """It takes one uplink from one leaf's routes and plans, for SUSPECT_SECONDS since it was last voiced; a port
    that names it leads there all the while."""
    now = [100.0]
    fabric = leafspine(2, 3, 4)
    steering = Steering(fabric, clock=lambda: now[0])
    suspect = path_over(steering, "leaf1", "spine2", "leaf2")
    before = steering.base(fabric.graph())
    assert steering.suspect(suspect)
    assert not steering.suspect(suspect), "not new"
    graph = fabric.graph()
    clos = steering.usable(*steering.usable_parts(graph))
    assert len(steering.ports(clos, "leaf1", "leaf2")) == 2
    assert len(steering.ports(clos, "leaf2", "leaf1")) == 3, "the way back is not suspect"
    found = ways.routes(steering, graph)
    assert (len(found["leaf1", "h3"]), len(found["leaf2", "h1"])) == (2, 3)
    changed = {(switch, entity) for switch, made in steering.base(graph).items()
               for entity in {*made} ^ {*before[switch]}
               if isinstance(entity, Entry) and entity.table in (tables.PIN, tables.BENT)}
    assert {switch for switch, _ in changed} == {"leaf1", "leaf2"}, "its answers do as well: they may be what is lost"
    for switch, entry in changed:
        ports, path = dict(entry.params), dict(entry.key)["path"]
        assert entry.table == tables.BENT
        own = ways.plan(steering, graph)[switch].pins[path]  # type: ignore[index]
        assert ports["roce"] == own.roce, "a queue pair can leave its port, and until then means its path"
        assert ports["connection"] != own.connection, "a connection of TCP goes another way"
    now[0] += SUSPECT_SECONDS / 2
    steering.suspect(suspect)
    now[0] += SUSPECT_SECONDS * 0.75
    assert steering.suspects()
    now[0] += SUSPECT_SECONDS
    assert not steering.suspects()
    assert steering.next_end() is None
    assert len(steering.ports(steering.usable(*steering.usable_parts(graph)), "leaf1", "leaf2")) == 3


def test_a_cleared_path_that_is_suspected_again_stays_suspect() -> None:
    """Probes may get through where hosts' packets do not: their second word counts for its full time, until
    CLEAR_INTERVAL has passed since the suspicion was cleared."""
    now = [100.0]
    steering = Steering(leafspine(2, 3, 4), clock=lambda: now[0])
    suspect, other = (path_over(steering, "leaf1", spine, "leaf2") for spine in ("spine2", "spine3"))
    assert not steering.may_clear(suspect), "nobody suspects it"
    steering.suspect(suspect)
    steering.suspect(other)
    assert steering.may_clear(suspect)
    steering.clear_suspicion(suspect)
    assert steering.suspects() == {("leaf2", other[0].link)}
    now[0] += SUSPECT_SECONDS / 2
    assert steering.suspect(suspect), "new again"
    assert not steering.may_clear(suspect)
    now[0] += CLEAR_INTERVAL
    steering.suspect(suspect)
    assert steering.may_clear(suspect)


def test_a_link_that_several_blamed_paths_share_is_left_by_everybody() -> None:
    """One path may be suspect for either of its links; of two, both ways included, the common link is it."""
    fabric = leafspine(4, 3, 4)
    steering = Steering(fabric)
    graph, dead = fabric.graph(), link_between(fabric, "leaf1", "spine2")
    for suspect in (("leaf1", "spine2", "leaf2"), ("leaf2", "spine2", "leaf1")):
        steering.suspect(path_over(steering, *suspect))
        assert not steering.shared_links(), "the way back of a suspect path is no second suspicion"
    assert len(steering.ports(steering.usable(*steering.usable_parts(graph)), "leaf1", "leaf4")) == 3
    steering.suspect(path_over(steering, "leaf3", "spine2", "leaf1"))
    assert steering.shared_links() == {dead}
    clos = steering.usable(*steering.usable_parts(graph))
    for a in clos.leaves:
        for b in clos.leaves:
            if a != b:
                assert len(steering.ports(clos, a, b)) == (2 if "leaf1" in (a, b) else 3), f"{a} to {b}"


def test_links_that_cannot_all_be_left_are_left_by_those_who_blame_them() -> None:
    """Where leaving every shared link would cut a leaf off, suspect paths are still avoided one by one."""
    fabric = leafspine(5, 2, 5)
    steering = Steering(fabric)
    for spine, to in (("spine1", "leaf2"), ("spine1", "leaf3"), ("spine2", "leaf4"), ("spine2", "leaf5")):
        steering.suspect(path_over(steering, "leaf1", spine, to))
    assert steering.shared_links() == {link_between(fabric, "leaf1", "spine1"), link_between(fabric, "leaf1", "spine2")}
    clos = steering.usable(*steering.usable_parts(fabric.graph()))
    for spine, to in (("spine2", "leaf2"), ("spine2", "leaf3"), ("spine1", "leaf4"), ("spine1", "leaf5")):
        (path,) = steering.ports(clos, "leaf1", to).values()
        assert path[0].head == spine


def test_suspecting_everything_is_suspecting_nothing() -> None:
    """Where all uplinks are suspect for a leaf, its packets still go somewhere."""
    fabric = leafspine(2, 2, 2)
    steering = Steering(fabric)
    for spine in ("spine1", "spine2"):
        steering.suspect(path_over(steering, "leaf1", spine, "leaf2"))
    graph = fabric.graph()
    assert len(steering.ports(steering.usable(*steering.usable_parts(graph)), "leaf1", "leaf2")) == 2
    assert all((switch, host) in ways.routes(steering, graph) for switch, host in (
        ("leaf1", "h2"), ("leaf2", "h1")))


def test_of_suspect_paths_alone_those_that_probes_come_through_are_used() -> None:
    """Planners and TCP's names use them, both ways.  While another path is left, or none lets probes through, probes
    change nothing."""
    now = [100.0]
    fabric = leafspine(2, 3, 4)
    steering, graph = Steering(fabric, clock=lambda: now[0]), fabric.graph()
    paths = [path_over(steering, "leaf1", f"spine{n}", "leaf2") for n in (1, 2, 3)]

    def used(a: str = "leaf1", b: str = "leaf2") -> set[str]:
        clos = steering.usable(*steering.usable_parts(graph))
        spines = {path[0].head for path in steering.ports(clos, a, b).values()}
        planned = ways.plan(steering, graph)
        named = [tcp_ports(port)[0] for port in steering.ports(steering.whole, a, b)]
        assert {walk(fabric, planned, a, b, name)[1] for name in named} <= spines
        return spines

    assert not steering.probed(paths[1], came=True), "nobody suspects it"
    for path in paths[:2]:
        steering.suspect(path)
    assert steering.probed(paths[1], came=True)
    assert not steering.probed(paths[1], came=True), "no news"
    assert used() == {"spine3"}
    steering.suspect(path_over(steering, "leaf2", "spine3", "leaf1"))
    assert steering.usable_parts(graph)[1] == {("leaf2", paths[0][0].link), ("leaf1", paths[2][-1].link)}
    steering.suspect(paths[2])
    assert used() == {"spine2"}
    assert len(steering.suspects()) == 4, "an operator sees them all"
    assert steering.probed(paths[1], came=False)
    assert used() == {"spine1", "spine2", "spine3"}
    steering.probed(paths[1], came=True)
    steering.drains.mark("spine2", True)
    assert used() == {"spine1", "spine3"}
    steering.drains.mark("spine2", False)
    now[0] += SUSPECT_SECONDS
    steering.suspect(paths[0])
    assert used() == {"spine2", "spine3"}, "what probes said ends with the suspicion"


def test_a_drained_link_carries_nothing_new_unless_it_is_the_last() -> None:
    """Routes and pins leave it; a drain that would cut the fabric apart does not count."""
    fabric = leafspine(2, 2, 2)
    steering = Steering(fabric)
    steering.drains.mark("leaf1:2", True)
    graph = steering.drains.left(fabric.graph())
    assert graph.number_of_edges() == len(fabric.links) - 1
    assert len(steering.ports(steering.usable(*steering.usable_parts(fabric.graph())), "leaf1", "leaf2")) == 1
    steering.drains.mark("leaf1:3", True)
    assert steering.drains.left(fabric.graph()).number_of_edges() == len(fabric.links)


def test_a_port_is_understood_whatever_is_down() -> None:
    """The uplink of a path between two hosts; none for ports that name no path, or under one leaf."""
    fabric = leafspine(2, 2, 4)
    steering = Steering(fabric)
    ports = steering.ports(Clos(fabric.graph()), "leaf1", "leaf2")
    assert [steering.path("h1", "h3", port) for port in ports] == [
        path_over(steering, "leaf1", spine, "leaf2") for spine in ("spine1", "spine2")]
    assert steering.path("h1", "h3", 50_000) is None
    assert steering.path("h1", "h2", next(iter(ports))) is None


def test_only_ports_of_the_fabrics_own_paths_name_one() -> None:
    """Not the ports that spray, nor those beyond a port's 16 bits or the greatest number, which share bits with them:
    of three tiers, switches look at the lower digit alone."""
    for fabric in (leafspine(2, 2, 2), threetier(2, 2, 2, 2, 2)):
        steering = Steering(fabric)
        most = steering.names.most
        udp = {roce.PATH_PORT + number for number in range(1, most + 1)}
        named = udp | {port for name in udp for port in tcp_ports(name)}
        assert {port for port in range(-70_000, 140_000) if steering.names_path(port)} == named


def test_a_pin_of_a_path_that_leads_nowhere_is_not_the_operators() -> None:
    """A path without its spine has no pin of RoCE at a leaf, whatever port an operator has chosen for it; once the
    spine is back, the choice counts."""
    fabric = leafspine(2, 2, 4)
    steering, port = Steering(fabric), roce.PATH_PORT + 1
    first, second = (link_between(fabric, "leaf1", spine) for spine in ("spine1", "spine2"))
    chosen = next(end.port for end in fabric.links[second].ends if end.node == "leaf1")
    steering.chosen["leaf1", "leaf2", port] = chosen
    assert ways.pinned(ways.plan(steering, fabric.graph())["leaf1"], "leaf2", port) == chosen
    lost = without(fabric, first, link_between(fabric, "leaf2", "spine1"))
    assert ways.plan(steering, lost)["leaf1"].ports("leaf2", 1).roce == NO_PORT
    assert ways.pinned(ways.plan(steering, fabric.graph())["leaf1"], "leaf2", port) == chosen
