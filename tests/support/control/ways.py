# SPDX-License-Identifier: Apache-2.0
"""What switches do with packets that are not folded, as tests ask for it: by host, and by source port."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

import networkx as nx

from netfold.controller.paths.steering import Steering, path_of
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry, State
from netfold.controller.switch.path_tables import NO_PORT, Forwarding
from netfold.fabric.graph import End, Fabric, Up
from netfold.fabric.routing.routes import NextHop


def plan(steering: Steering, graph: nx.MultiGraph[str]) -> dict[str, Forwarding]:
    """What every switch does."""
    return steering.plan(steering.inputs(Up.of(graph)))


def routes(steering: Steering, graph: nx.MultiGraph[str]) -> dict[tuple[str, str], tuple[NextHop, ...]]:
    """The next hops of every switch to every host that it reaches."""
    found = {(switch, host): ways.hops(leaf) for switch, ways in plan(steering, graph).items()
             for host, leaf in steering.leaf_of.items() if leaf != switch}
    found |= {(switch, host): (hop,) for switch, ways in plan(steering, graph).items()
              for host, hop in ways.hosts.items()}
    return {way: hops for way, hops in found.items() if hops}


def pinned(ways: Forwarding, leaf: str, source_port: int) -> int | None:
    """The port to which packets to a leaf with this UDP or TCP port are pinned; None: to none."""
    path, kind = path_of(source_port)
    port: int = getattr(ways.ports(leaf, path), kind)
    return None if port == NO_PORT else port


def route(state: State, address: str) -> Entry | None:
    """The entry by which a switch that holds these entities routes an address: that with the longest prefix."""
    number = int(ipaddress.IPv4Address(address))
    found: dict[int, Entry] = {}
    for entity in state.values():
        if isinstance(entity, Entry) and entity.table == tables.ROUTE:
            ((_, (prefix, length)),) = entity.key  # type: ignore[misc]
            if prefix >> 32 - length == number >> 32 - length:
                found[length] = entity
    return found[max(found)] if found else None


def next_ports(state: State, address: str) -> set[int]:
    """The ports by which a switch that holds these entities routes packets to an address."""
    entry = route(state, address)
    if entry is None or entry.action == tables.UNREACHABLE:
        return set()
    params = dict(entry.params)
    if entry.action == tables.FORWARD:
        return {params["port"]}
    members = range(params["first"], params["first"] + params["members"])
    uplinks = [state[tables.UPLINK, (("group", params["group"]), ("member", member))] for member in members]
    return {dict(uplink.params)["port"] for uplink in uplinks if isinstance(uplink, Entry)}


def arrivals(
    fabric: Fabric, held: Mapping[str, State], source: str, address: str, source_port: int
) -> set[tuple[str, ...]]:
    """The ways that packets to an address with this UDP or TCP port may take from a leaf, switch by switch, by what
    the switches hold: to the host, or to "dropped".  Raises AssertionError for a way that visits a switch twice."""
    far = {a: b.node for link in fabric.links for a, b in (link.ends, link.ends[::-1])}
    found: set[tuple[str, ...]] = set()
    pending: list[tuple[str, ...]] = [(source,)]
    while pending:
        way = pending.pop()
        assert len(set(way)) == len(way), f"a loop: {way}"
        if way[-1] not in held:
            found.add(way)
            continue
        ports = _out(held[way[-1]], address, source_port)
        pending += [(*way, far[End(way[-1], port)]) for port in ports] or [(*way, "dropped")]
    return found


def _out(state: State, address: str, source_port: int) -> set[int]:
    """The ports by which packets with this source port may leave: one if a pin says it, all of a group if the hash
    does; p4src/paths.p4 in few words."""
    entry = route(state, address)
    params = {} if entry is None else dict(entry.params)
    if entry is None or entry.action != tables.SPREAD:
        return next_ports(state, address)
    path, kind = path_of(source_port)
    key = ("path", path & params["names"])
    pin = state.get((tables.PIN, (key,)))
    if params["leaf"]:
        pin = state.get((tables.BENT, (("leaf", params["leaf"]), key)), pin)
    port = dict(pin.params)[kind] if isinstance(pin, Entry) else NO_PORT
    return next_ports(state, address) if port == NO_PORT else {port}
