# SPDX-License-Identifier: Apache-2.0
"""Table entries, and the writes that turn what a switch holds into what it should hold."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from netfold.cli import dryrun
from netfold.controller.paths.steering import Steering
from netfold.controller.switch import entities, fold_tables, reconcile, tables
from netfold.controller.switch.entities import Entity, Entry, Multicast
from netfold.fabric.folding import slots
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.wire import roce
from support.control import ways
from support.fabrics.plans import admitted, allocator_of, fabrics_and_ranks

KEY = ("ingress_port", "src", "dst", "sport", "queue_pair")
"""The fields by which a switch knows a connection."""
GOLDEN = Path(__file__).parent / "test_tables.golden.txt"


def entries(fabric: Fabric, ranks: list[str], streams: list[slots.Stream]) -> dict[str, list[Entity]]:
    """Everything that the streams need, by switch."""
    hosts = [fabric.host(name) for name in ranks]
    return tables.merge(fold_tables.fold_entries(fabric, hosts, stream) for stream in streams)


@given(fabrics_and_ranks())
def test_packets_find_their_way_up_and_down_every_tree(case: tuple[Fabric, list[str]]) -> None:
    """Walked through the entries alone: every rank's packet reaches the root, every result every rank, as if from its
    ring predecessor."""
    fabric, ranks = case
    graph = fabric.graph()
    streams = admitted(fabric, ranks, allocator_of(fabric))
    states = {name: entities.state(made) for name, made in entries(fabric, ranks, streams).items()}
    hosts = [fabric.host(name) for name in ranks]
    peers = {(a, data["ports"][a]): (b, data["ports"][b])
             for x, y, data in graph.edges(data=True) for a, b in ((x, y), (y, x))}

    def ip(text: str) -> int:
        return int.from_bytes(bytes(map(int, text.split("."))), "big")

    def entry(switch: str, table: str, action: str, **key: int) -> dict[str, int]:
        found = states[switch][table, tuple(key.items())]
        assert isinstance(found, Entry)
        assert found.action == action
        return dict(found.params)

    def leave(switch: str, group: int, child: int, port: int) -> tuple[str, dict[str, int]]:
        """Rewritten and sent: where it arrives, as what."""
        packet = entry(switch, tables.REPLICA, tables.REWRITE, group=group, child=child)
        there, arrival = peers[switch, port]
        return there, {"ingress_port": arrival, **packet}

    for stream in streams:
        reached: dict[str, set[int]] = {}
        for rank, host in enumerate(hosts):
            after = (rank + 1) % len(hosts)
            switch, port = peers[host.name, 0]
            to = stream.connections[after] << roce.OPERATION_BITS
            packet = {"ingress_port": port, "src": ip(host.address), "dst": ip(hosts[after].address),
                      "sport": stream.source_ports[rank], "queue_pair": to}
            first = True
            while True:
                at = entry(switch, tables.CONNECTION, tables.CONTRIBUTION, **packet)
                assert at["check"] == first
                assert (at["epoch"], at["mask"]) == (stream.epoch, stream.slots - 1)
                reached.setdefault(switch, set()).add(at["child"])
                if at["root"]:
                    break
                switch, arrived = leave(switch, at["group"], fold_tables.PARENT, at["parent_port"])
                packet = {key: arrived[key] for key in KEY}
                first = False
            assert switch == stream.tree.root
        for fold in stream.tree.folds:
            assert reached[fold.switch] == set(range(len(fold.children)))

        got: dict[str, int] = {}
        down = [(stream.tree.root, stream.groups[stream.tree.root])]
        while down:
            switch, group = down.pop()
            multicast = states[switch]["multicast", (("group", group),)]
            assert isinstance(multicast, Multicast)
            for port, rid in multicast.replicas:
                there, packet = leave(switch, group, rid, port)
                if there in states:
                    key = {k: packet[k] for k in KEY}
                    at = entry(there, tables.CONNECTION, tables.RESULT, **key)
                    down.append((there, at["group"]))
                    continue
                rank = ranks.index(there)
                got[there] = got.get(there, 0) + 1
                before = (rank - 1) % len(hosts)
                assert packet["dst"] == ip(hosts[rank].address)
                assert packet["queue_pair"] == stream.connections[rank] << roce.OPERATION_BITS
                assert packet["src"] == ip(hosts[before].address)
                assert packet["sport"] == stream.source_ports[before]
                assert packet["dst_mac"] == int(hosts[rank].mac.replace(":", ""), 16)
        assert got == dict.fromkeys(ranks, 1)


def test_entries_of_a_small_fabric() -> None:
    """Every entry of a 2x2x4 fabric with losses and one job of all hosts, as text."""
    fabric = leafspine(2, 2, 4, loss=0.01, seed=3)
    text = f"{dryrun.plan(fabric, [host.name for host in fabric.hosts], entries=True, seed=1)}\n"
    assert text == GOLDEN.read_text(), f"if this is meant: write the new text to {GOLDEN.name}"


def test_fold_addresses_have_the_routes_of_their_hosts() -> None:
    """On each switch, and only for hosts with RDMA; nothing else changes."""
    plain = leafspine(2, 2, 4)
    hosts = [structs.replace(host, rdma=host.name in ("h2", "h3")) for host in plain.hosts]
    fabric = structs.replace(plain, hosts=tuple(hosts))
    before, after = (Steering(f).base(f.graph()) for f in (plain, fabric))
    for switch in fabric.switches:
        own = fabric.leaf_of()
        new = {entry for entry in after[switch.name] if entry not in before[switch.name]}
        assert not {*before[switch.name]} - {*after[switch.name]}
        for name, fold in (("h2", 2), ("h3", 3)):
            held = entities.state(after[switch.name])
            takes = ways.route(held, str(IPv4Address("198.18.0.0") + fold))
            assert takes is not None
            there = ways.route(held, fabric.host(name).address)
            assert there is not None
            assert (takes.action, takes.params) == (there.action, there.params)
            if switch.name == own[name] or switch.role == "spine":
                assert takes in new
                new.remove(takes)
        assert not new


def test_losses_stand_where_packets_enter_switches_and_leave_to_hosts() -> None:
    """Each direction of a lossy link has one entry, with a seed of its own that the fabric's seed moves."""
    fabric = leafspine(2, 1, 2, loss=0.25)
    made = tables.fault_entries(fabric)
    found = [entity for part in made.values() for entity in part if isinstance(entity, Entry)]
    assert len(found) == 2 * len(fabric.links)
    assert {dict(e.params)["lose"] for e in found} == {2**30}
    seeds = {dict(e.params)["seed"] for e in found}
    assert len(seeds) == len(found)
    outs = [(switch, e.key) for switch, part in made.items() for e in part
            if isinstance(e, Entry) and e.table == f"{tables.FAULT_OUT}.fault"]
    assert outs == [("leaf1", (("port", 1),)), ("leaf2", (("port", 1),))]
    other = tables.fault_entries(leafspine(2, 1, 2, loss=0.25, seed=1))
    assert seeds.isdisjoint(dict(e.params)["seed"] for p in other.values() for e in p if isinstance(e, Entry))
    certain = tables.fault_entries(leafspine(1, 0, 1, loss=1.0))
    assert all(dict(e.params)["lose"] == 2**32 - 1 for e in certain["leaf1"] if isinstance(e, Entry))


ENTITY = st.one_of(
    st.builds(lambda t, k, a: Entry(f"C.{t}", (("k", k),), "C.a", (("p", a),)),
              st.sampled_from(["connection", "replica", "route", "uplink"]), st.integers(0, 3), st.integers(0, 2)),
    st.builds(lambda g, p: Multicast(g, ((p, 0),)), st.integers(1, 3), st.integers(1, 3)),
    st.builds(lambda a: Entry("C.keyless", (), "C.a", (("p", a),)), st.integers(0, 2)),
)
DEFAULT = Entry("C.keyless", (), "C.a").identity
STATES = st.lists(ENTITY, max_size=12, unique_by=lambda e: e.identity).map(entities.state)


@given(STATES, STATES)
def test_applying_a_difference_gives_the_desired_state(actual: entities.State, desired: entities.State) -> None:
    """The writes turn one state into the other, a second difference is empty, and references never dangle; a default
    action is only ever modified, and stays where nothing else is wanted."""
    held = dict(actual)
    updates = reconcile.diff(actual, desired)
    for update in updates:
        key = update.entity.identity
        if update.entity.identity == DEFAULT:
            assert update.verb == "modify"
        else:
            assert (key in held) == (update.verb != "insert")
        if update.verb == "delete":
            del held[key]
        else:
            held[key] = update.entity
    assert held == {key: e for key, e in actual.items() if key == DEFAULT} | desired
    assert reconcile.diff(held, desired) == []

    def places(verb: str, *tables: str) -> list[int]:
        return [place for place, u in enumerate(updates) if u.verb == verb
                and ("multicast" if isinstance(u.entity, Multicast) else u.entity.table.split(".")[1]) in tables]

    referred, referring = ("multicast", "uplink", "replica"), ("connection", "route")
    order = [places("insert", *referred), places("modify", *referred, *referring), places("delete", *referring),
             places("delete", "uplink", "replica"), places("delete", "multicast"), places("insert", *referring)]
    flat = [place for group in order for place in group]
    assert [sorted(group) for group in order] == order
    assert flat == sorted(flat)
    assert len(reconcile.show("s", updates).splitlines()) == len(updates)


def test_contradictions_in_the_desired_state_are_errors() -> None:
    """Two parts that want one entry to say different things are a bug that must not reach a switch."""
    with pytest.raises(entities.Conflict, match="contradicts"):
        entities.state([Multicast(1, ((1, 0),)), Multicast(1, ((2, 0),))])
