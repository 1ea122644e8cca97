# SPDX-License-Identifier: Apache-2.0
"""Makes the entries of p4src's tables from plans: the one module that knows the names of the program.

    routes   -> route, uplink           streams -> connection, acknowledgement, replica, multicast groups
    links    -> guard, clone sessions
    steering -> policy, pin, uplink
    faults   -> fault (on the way in and out)       engine  -> congestion
    probes   -> route (to the CPU port), punt
"""

from __future__ import annotations

import ipaddress
import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

from netfold.controller.switch.entities import Clone, Entity, Entry, MeterRate, Multicast
from netfold.fabric.graph import End, Fabric, Host, Link
from netfold.fabric.routes import NextHop, Route
from netfold.fabric.slots import Holding, Stream
from netfold.fabric.trees import Child, Fold
from netfold.wire import roce

ROUTERS: Final = "224.0.0.2"
"""Multicast address of all routers on a link (RFC 1112), such as link probes have: switches send them to the CPU."""
PROBES_PER_LINK: Final = 50
"""Probes a second that `netfold.controller.health.liveness` may send over a link each way beside the regular ones: of a
suspect link, and where somebody waits for an answer.  As many short ones follow those that are lost."""
PUNT_HEADROOM: Final = 4
"""How many times as many probes as the controller sends may reach the CPU port: links that duplicate packets do so to
probes too, and a switch that was late has several at once."""
CONNECTION: Final = "SwitchIngress.fold.connection.connection"
CONTRIBUTION: Final = "SwitchIngress.fold.connection.contribution"
CONTRIBUTION_RC: Final = "SwitchIngress.fold.connection.contribution_rc"
RESULT: Final = "SwitchIngress.fold.connection.result"
ACKNOWLEDGEMENT: Final = "SwitchIngress.fold.connection.acknowledgement"
ACKNOWLEDGES: Final = "SwitchIngress.fold.connection.acknowledges"
REPLICA: Final = "SwitchEgress.replica.replica"
REWRITE: Final = "SwitchEgress.replica.rewrite"
REWRITE_RC: Final = "SwitchEgress.replica.rewrite_rc"
GUARD: Final = "SwitchIngress.guard.guard"
HOST: Final = "SwitchIngress.guard.host"
NEIGHBOUR: Final = "SwitchIngress.guard.neighbour"
SPOOFED: Final = "SwitchIngress.guard.spoofed"
"""Counter by port: packets of a host that were dropped, since they did not carry its address."""
UNFOLDED: Final = "SwitchIngress.guard.unfolded"
"""Counter by port: packets of a host to a fold address that were dropped, since no entry folds them."""
UNASSIGNED: Final = "SwitchIngress.guard.unassigned"
"""Counter by port: packets that were dropped, since the fabric has no link at the port where they came in."""
ROUTE: Final = "SwitchIngress.route.route"
UPLINK: Final = "SwitchIngress.route.uplink"
FORWARD: Final = "SwitchIngress.route.forward"
SPREAD: Final = "SwitchIngress.route.spread"
_PATHS: Final = "SwitchIngress.route.paths"
POLICY: Final = f"{_PATHS}.policy"
PIN: Final = f"{_PATHS}.pin"
FAULT_IN: Final = "SwitchIngress.fault_in"
FAULT_OUT: Final = "SwitchEgress.fault_out"
CONGESTION: Final = "SwitchEgress.congestion.congestion"
MARK_ABOVE: Final = "SwitchEgress.congestion.mark_above"
TO_CPU: Final = "SwitchIngress.route.to_cpu"
_PUNT: Final = "SwitchIngress.route.punt"
PUNT: Final = f"{_PUNT}.punt"
REFUSED: Final = f"{_PUNT}.refused"
"""Counter by port: packets for the CPU port from where none may come, hosts above all."""
OVER_RATE: Final = f"{_PUNT}.over_rate"
"""Counter by port: packets for the CPU port beyond the rate that its meter lets pass."""
PORT_IN: Final = "SwitchIngress.port_in"
PORT_OUT: Final = "SwitchEgress.port_out"
CORRUPT: Final = "SwitchIngress.fold.corrupt"
UNPINNED: Final = f"{_PATHS}.unpinned"
"""Counter by destination leaf: packets in mode "pinned" that no pin was for."""
OUTCOMES: Final = "SwitchIngress.fold.verdict.outcomes"
"""Counter of packets of trees by outcome: FIRST, ANSWERED, ... of p4src/verdict.p4."""
GAPS: Final = "SwitchIngress.fold.gaps"
"""Counter by port: gaps in what a neighbour there sends, of which it was told at once by a NAK."""
FAULTS: Final = ("lost", "corrupted", "duplicated", "held")
"""Outcomes of injected faults, each with a counter (`fault_counter`) and a field of `wire.operator.Traffic`."""
REORDER_BY: Final = 8
"""Packets that overtake one that is held back: more than hosts tolerate as reordering (NF_REORDER of host/native)."""

MANAGED: Final = (
    GUARD, ROUTE, UPLINK, POLICY, PIN, PUNT, CONNECTION, ACKNOWLEDGEMENT, REPLICA, f"{FAULT_IN}.fault",
    f"{FAULT_OUT}.fault", CONGESTION,
)
"""Tables that the controller reconciles: it deletes entries that it does not know."""

MARK_BYTES: Final = 1 << 17
"""Payload bytes in a port's queue above which packets are marked (ECN) on softswitch: late enough for bursts, early
enough to avoid losses."""
BMV2_MARK_DEPTH: Final = 16
"""The same on BMv2 in packets, of whatever length: a queue holds 64 of them."""

PARENT: Final = 0xFFFF
"""The key ``child`` of the replica entry for the parent: PARENT of p4src/sizes.p4."""
ANSWERS: Final = 0x4000
"""Added to a NIC's number: the key ``child`` of the replica entry for what answers it.  ANSWERS of p4src/sizes.p4."""

BySwitch = dict[str, list[Entity]]

Mode = Literal["pinned", "ecmp", "spray"]
"""How packets to a leaf choose among equally short uplinks: the actions of `policy` in p4src/paths.p4."""
Pin = tuple[str, str, int]
"""The key of a pin: switch, destination leaf, UDP or TCP port that names the path."""
Pins = dict[str, dict[tuple[str, int], int]]
"""The port of every pin, by switch, then by destination leaf and port that names the path."""


def route_entries(fabric: Fabric, routes: Iterable[Route]) -> BySwitch:
    """Entries of `route`, and of `uplink` for every group of equally short next hops.  What goes to a host's fold
    address takes the host's routes: it comes from switches alone, since `guard` lets no host address one."""
    result: BySwitch = defaultdict(list)
    groups: dict[str, dict[tuple[NextHop, ...], int]] = defaultdict(dict)
    addresses = {host.name: [_ip(address) for address in (host.address, fold) if address]
                 for host, fold in zip(fabric.hosts, fabric.fold_addresses(), strict=True)}
    leaves, leaf_of, macs = leaf_numbers(fabric), fabric.leaf_of(), _macs(fabric)
    once: dict[tuple[object, ...], Entry] = {}  # most leaves spread packets to a host alike
    for route in sorted(routes, key=lambda r: (r.switch, addresses[r.host])):
        if len(route.hops) == 1:
            action, params = FORWARD, _forward(macs, route.switch, route.hops[0])
        else:
            known = groups[route.switch]
            if (group := known.get(route.hops)) is None:
                known[route.hops] = group = len(known) + 1
                result[route.switch] += [
                    Entry(UPLINK, (("group", group), ("member", member)), FORWARD, _forward(macs, route.switch, hop))
                    for member, hop in enumerate(route.hops)
                ]
            action, params = SPREAD, (("leaf", leaves[leaf_of[route.host]]), ("group", group),
                                      ("members", len(route.hops)))
        for address in addresses[route.host]:
            entry = Entry(ROUTE, (("dst", (address, 32)),), action, params)
            result[route.switch].append(once.setdefault((address, params), entry))
    return result


def leaf_numbers(fabric: Fabric) -> dict[str, int]:
    """The numbers of leaves in the program, by name: the switch's place in the fabric, from 1."""
    return {switch.name: number for number, switch in enumerate(fabric.switches, 1)}


def path_entries(
    fabric: Fabric, modes: Mapping[str, Mode], pins: Pins, spreading: Collection[str]
) -> BySwitch:
    """Entries of `policy` and `pin`, and group 0 of `uplink`, which holds a switch's uplinks by port.

    The first of UDP's and of TCP's ports that name paths is that of packets to spray.

    modes      how each destination leaf's packets choose among ``spreading``'s uplinks
    spreading  switches that have a choice of uplinks
    """
    result: BySwitch = defaultdict(list)
    numbers, macs = leaf_numbers(fabric), _macs(fabric)
    uplinks: dict[str, list[NextHop]] = defaultdict(list)
    for link in fabric.links:
        for end, far in (link.ends, link.ends[::-1]):
            if far.node in numbers:
                uplinks[end.node].append(NextHop(end.port, far.node))
    for switch in spreading:
        result[switch] += [
            Entry(UPLINK, (("group", 0), ("member", hop.port)), FORWARD, _forward(macs, switch, hop))
            for hop in uplinks[switch]
        ]
        result[switch] += [Entry(POLICY, (("leaf", numbers[leaf]),), f"{_PATHS}.{mode}")
                           for leaf, mode in modes.items() if leaf != switch]
        result[switch] += [Entry(PIN, (("leaf", numbers[leaf]), ("sport", port)), f"{_PATHS}.spray")
                           for leaf in modes if leaf != switch for port in (roce.PATH_PORT, roce.TCP_PATH_PORT)]
    once: dict[tuple[str, int, int], Entry] = {}  # leaves that are cabled alike have the same pins
    use = f"{_PATHS}.use"
    for switch, chosen in pins.items():
        for (leaf, source_port), port in chosen.items():
            entry = once.get((leaf, source_port, port))
            if entry is None:
                key = (("leaf", numbers[leaf]), ("sport", source_port))
                entry = once[leaf, source_port, port] = Entry(PIN, key, use, (("port", port),))
            result[switch].append(entry)
    return result


def fault_entries(fabric: Fabric, seeds: Mapping[int, int] | None = None) -> BySwitch:
    """Entries of `fault`.  ``seeds`` are those of links, by number, that have another one than the fabric's.

    The faults of a link are injected where it enters a switch; towards a host, where it leaves the switch.  Payloads
    are corrupted on the way from a host alone, where the first switch checks the ICRC."""
    result: BySwitch = defaultdict(list)
    switches = {switch.name for switch in fabric.switches}
    for number, link in enumerate(fabric.links):
        a, b = link.ends
        seed = (seeds or {}).get(number, fabric.seed)
        for sender, receiver in ((a, b), (b, a)):
            at, control = (receiver, FAULT_IN) if receiver.node in switches else (sender, FAULT_OUT)
            limits = _limits(link, corrupt=sender.node not in switches)
            if not any(limits):
                continue
            params = (("seed", _seed(seed, sender, receiver)),
                      *zip(("lose", "flip", "twice", "late"), limits, strict=True), ("by", REORDER_BY))
            result[at.node].append(Entry(f"{control}.fault", (("port", at.port),), f"{control}.faulty", params))
    return result


def fault_counter(control: str, fault: str) -> str:
    """Name of the counter, by port, of one of `FAULTS` in the control FAULT_IN or FAULT_OUT."""
    return f"{control}.fault_{fault}"


def _limits(link: Link, *, corrupt: bool) -> tuple[int, ...]:
    """Limits of the draw in p4src/fault.p4: cumulative shares of 2^32."""
    shares = accumulate((link.loss, link.corrupt if corrupt else 0.0, link.duplicate, link.reorder))
    return tuple(min(round(share * 2**32), 2**32 - 1) for share in shares)


def congestion_entries(fabric: Fabric) -> BySwitch:
    """The default action of `congestion`: the queue length above which each switch marks packets."""
    depth = BMV2_MARK_DEPTH if fabric.engine == "bmv2" else MARK_BYTES // fabric.path_mtu
    return {s.name: [Entry(CONGESTION, (), MARK_ABOVE, (("depth", depth),))] for s in fabric.switches}


def probe_entries(fabric: Fabric) -> BySwitch:
    """What brings link probes, which are addressed to all routers of a link, to the CPU port of every switch: their
    route, and an entry of `punt` for each port with a switch behind it, with the rate of its meter."""
    result: BySwitch = defaultdict(list)
    switches, rate = {switch.name for switch in fabric.switches}, _punt_rate(fabric)
    for name in switches:
        result[name].append(Entry(ROUTE, (("dst", (_ip(ROUTERS), 32)),), TO_CPU))
    for link in fabric.links:
        if {end.node for end in link.ends} <= switches:
            for end in link.ends:
                result[end.node].append(Entry(PUNT, (("ingress_port", end.port),), f"{_PUNT}.allow", (), rate))
    return result


def _punt_rate(fabric: Fabric) -> MeterRate:
    """What may reach the CPU port from one port; at once, a quarter of a second's packets."""
    regular = 1 / fabric.probe if fabric.probe else 0.0
    rate = math.ceil(PUNT_HEADROOM * (PROBES_PER_LINK + regular))
    return MeterRate(rate, math.ceil(rate / 4))


def guard_entries(fabric: Fabric) -> BySwitch:
    """Entries of `guard`: who is at the other end of each port's link, and of a host its addresses.  A port without a
    link has none, and takes nothing."""
    result: BySwitch = defaultdict(list)
    hosts = {host.name: (("address", _ip(host.address)), ("fold_address", _ip(fold) if fold else 0))
             for host, fold in zip(fabric.hosts, fabric.fold_addresses(), strict=True)}
    for link in fabric.links:
        for here, far in (link.ends, link.ends[::-1]):
            if here.node in hosts:
                continue
            key = (("port", here.port),)
            result[here.node].append(Entry(GUARD, key, HOST, hosts[far.node]) if far.node in hosts
                                     else Entry(GUARD, key, NEIGHBOUR))
    return result


def clone_sessions(fabric: Fabric) -> BySwitch:
    """A clone session for each port with a link, by the port's number: copies that faults make, and NAKs for gaps."""
    result: BySwitch = defaultdict(list)
    switches = {switch.name for switch in fabric.switches}
    for link in fabric.links:
        for end in link.ends:
            if end.node in switches:
                result[end.node].append(Clone(end.port, end.port))
    return result


def fixed_entries(fabric: Fabric, seeds: Mapping[int, int] | None = None) -> BySwitch:
    """All entries that depend on nothing but the fabric's description, and the seeds of some links' faults."""
    return merge([guard_entries(fabric), clone_sessions(fabric), fault_entries(fabric, seeds),
                  congestion_entries(fabric), probe_entries(fabric)])


def fold_entries(fabric: Fabric, ranks: Sequence[Host], stream: Stream) -> BySwitch:
    """Entries and multicast groups of one stream on the switches of its tree.  ``ranks``: the job's hosts, by rank.

    An RC rank has none before ``stream.rc`` says what its NIC and its neighbours' have chosen; until then nothing that
    it sends passes its switch."""
    result: BySwitch = {}
    ranks = [ranks[rank] for rank in stream.ranks]
    for fold in stream.tree.folds:
        entities: list[Entity] = []
        for number, child in enumerate(fold.children):
            if child.rank is None or child.rank not in stream.rc_ranks:
                entities += [
                    Entry(CONNECTION, _connection_key(fabric, ranks, stream, fold, child), CONTRIBUTION,
                          _contribution(stream, fold, number)),
                    Entry(REPLICA, _replica_key(stream, fold, number), REWRITE,
                          (*_to_child(fabric, ranks, stream, fold, child), _flow(stream, fold, number))),
                ]
            elif stream.rc:
                entities += _rc_child(fabric, ranks, stream, fold, number)
        entities.append(Multicast(stream.groups[fold.switch],
                                  tuple((child.port, number) for number, child in enumerate(fold.children))))
        if fold.parent is not None:
            here, parent = fabric.switch(fold.switch), fabric.switch(fold.parent)
            down = _arriving(fold.parent_port, parent.address, here.address, stream.source_ports[0],
                             stream.down[fold.switch])
            entities.append(Entry(CONNECTION, down, RESULT, _tree(stream, fold, len(fold.children))))
            entities.append(Entry(REPLICA, _replica_key(stream, fold, PARENT), REWRITE, (*_rewrite(
                fabric, here.mac, parent.mac, here.address, parent.address, stream.source_ports[0],
                stream.up[fold.switch]), _flow(stream, fold, len(fold.children)))))
        result[fold.switch] = entities
    return result


def by_epoch(state: Iterable[Entity]) -> dict[int, list[Entity]]:
    """The entities of jobs among those of a switch, by the epoch of their slots: entries of `connection` and
    `acknowledgement` say it; a multicast group and its replicas are of the epoch whose entries send to the group."""
    entities = list(state)
    epoch_of: dict[int, int] = {}
    for entity in entities:
        if isinstance(entity, Entry) and entity.table == CONNECTION:
            params = dict(entity.params)
            epoch_of[params["group"]] = params["epoch"]
    found: dict[int, list[Entity]] = defaultdict(list)
    for entity in entities:
        if isinstance(entity, Entry) and entity.table == ACKNOWLEDGEMENT:
            found[dict(entity.params)["epoch"]].append(entity)
            continue
        if isinstance(entity, Entry):
            group = {CONNECTION: dict(entity.params).get("group"), REPLICA: dict(entity.key).get("group")}.get(
                entity.table)
        else:
            group = entity.group if isinstance(entity, Multicast) else None
        if isinstance(group, int) and group in epoch_of:
            found[epoch_of[group]].append(entity)
    return dict(found)


def holding(entities: Iterable[Entity]) -> Holding:
    """The numbers that a job's entities on one switch stand for.  The queue pairs of NICs are not ours to hand out."""
    ranges, groups, connections, flows = set(), set(), set(), set()
    for entity in entities:
        if isinstance(entity, Multicast):
            groups.add(entity.group)
        elif isinstance(entity, Entry):
            exact = {name: value for name, value in entity.key if isinstance(value, int)}
            values = {**exact, **dict(entity.params)}
            if entity.action in (CONTRIBUTION, RESULT, REWRITE):
                connections.add(values["queue_pair"] >> roce.OPERATION_BITS)
            if entity.table == CONNECTION:
                ranges.add((values["base"], values["mask"] + 1))
                groups.add(values["group"])
                flows.add(values["flow"])
    return Holding(frozenset(ranges), frozenset(groups), frozenset(connections), frozenset(flows))


def merge(parts: Iterable[Mapping[str, Sequence[Entity]]]) -> BySwitch:
    """The entities of all parts together, by switch."""
    result: BySwitch = defaultdict(list)
    for part in parts:
        for switch, entities in part.items():
            result[switch] += entities
    return result


# ---- connection -----------------------------------------------------------------------------------------------------


def _connection_key(
    fabric: Fabric, ranks: Sequence[Host], stream: Stream, fold: Fold, child: Child
) -> tuple[tuple[str, int], ...]:
    """The key of a child's contributions: a rank addresses its ring neighbour, a switch addresses this switch."""
    if child.rank is None:
        here, below = fabric.switch(fold.switch), fabric.switch(child.node)
        return _arriving(child.port, below.address, here.address, stream.source_ports[0], stream.up[child.node])
    neighbour = (child.rank + 1) % len(ranks)
    return _arriving(child.port, ranks[child.rank].address, ranks[neighbour].address, stream.source_ports[child.rank],
                     stream.connections[neighbour])


def _arriving(port: int, src: str, dst: str, sport: int, connection: int) -> tuple[tuple[str, int], ...]:
    """The key of packets that come in at a port, from one address and UDP source port to another address's queue
    pairs."""
    return (("ingress_port", port), ("src", _ip(src)), ("dst", _ip(dst)), ("sport", sport),
            ("queue_pair", connection << roce.OPERATION_BITS))


def _contribution(stream: Stream, fold: Fold, number: int) -> tuple[tuple[str, int], ...]:
    group, *tree = _tree(stream, fold, number)
    first_hop = fold.children[number].rank is not None  # between switches the ICRC was made by the switch before
    return (group, ("child", number), *tree, ("root", int(fold.is_root)), ("check", int(first_hop)),
            ("parent_port", fold.parent_port))


def _tree(stream: Stream, fold: Fold, sender: int) -> tuple[tuple[str, int], ...]:
    """Parameters that all contributions and results of a tree have: its slots, and the sender's flow."""
    return (("group", stream.groups[fold.switch]), ("children", (1 << len(fold.children)) - 1),
            ("epoch", stream.epoch), ("base", stream.bases[fold.switch]), ("mask", stream.slots - 1),
            _flow(stream, fold, sender))


def _flow(stream: Stream, fold: Fold, neighbour: int) -> tuple[str, int]:
    """The parameter that names the flows from a neighbour and to it: a child by its number, the parent after them."""
    return ("flow", stream.flows[fold.switch] + neighbour)


def _rc_child(fabric: Fabric, ranks: Sequence[Host], stream: Stream, fold: Fold, number: int) -> list[Entity]:
    """The entries of a rank's NIC: its contributions, which it sends to its successor's fold address, and what its
    successor acknowledges; its results, which come from its predecessor; and answers to it in its successor's name."""
    place = fold.children[number].rank
    assert place is not None
    successor, predecessor = stream.successor(place), stream.predecessor(place)
    host, peer = ranks[place], ranks[successor]
    here, own, other = fabric.switch(fold.switch), stream.rc[place], stream.rc[successor]
    fold_address, peer_address = fabric.fold_address(host), fabric.fold_address(peer)
    key = (("ingress_port", fold.children[number].port), ("src", _ip(host.address)), ("dst", _ip(peer_address)),
           ("sport", 0), ("queue_pair", other.in_qp))
    group, *tree = _tree(stream, fold, number)
    contribution = (group, ("child", number), *tree, ("root", int(fold.is_root)), ("parent_port", fold.parent_port),
                    ("operation", stream.operation), ("region", other.address), ("first_psn", stream.psn))
    acknowledges = (_flow(stream, fold, number), ("epoch", stream.epoch))
    acknowledged = (("src", _ip(peer_address)), ("dst", _ip(host.address)), ("queue_pair", own.out_qp))
    ports = _ports_towards(fabric, fold.switch, peer)
    result = _rewrite_rc(here.mac, host.mac, ranks[predecessor].address, fold_address, stream.source_ports[predecessor],
                         own.in_qp, own.address, own.rkey)
    answer = _rewrite_rc(here.mac, host.mac, peer_address, host.address, stream.source_ports[successor], own.out_qp,
                         0, 0)
    return [
        Entry(CONNECTION, key, CONTRIBUTION_RC, contribution),
        *(Entry(ACKNOWLEDGEMENT, (("ingress_port", port), *acknowledged), ACKNOWLEDGES, acknowledges)
          for port in ports),
        Entry(REPLICA, _replica_key(stream, fold, number), REWRITE_RC, result),
        Entry(REPLICA, _replica_key(stream, fold, number + ANSWERS), REWRITE_RC, answer),
    ]


def _ports_towards(fabric: Fabric, switch: str, host: Host) -> list[int]:
    """The ports of a switch at which packets of a host can come in: the host's own, or all that lead to switches."""
    far = {end.port: other.node for link in fabric.links for end, other in (link.ends, link.ends[::-1])
           if end.node == switch}
    direct = [port for port, node in far.items() if node == host.name]
    return direct or sorted(port for port, node in far.items() if node not in {one.name for one in fabric.hosts})


# ---- replica --------------------------------------------------------------------------------------------------------


def _replica_key(stream: Stream, fold: Fold, child: int) -> tuple[tuple[str, int], ...]:
    return (("group", stream.groups[fold.switch]), ("child", child))


def _to_child(
    fabric: Fabric, ranks: Sequence[Host], stream: Stream, fold: Fold, child: Child
) -> tuple[tuple[str, int], ...]:
    """Parameters of `rewrite` towards a child: a rank sees a packet of its ring predecessor, a switch one of its
    neighbour."""
    here = fabric.switch(fold.switch)
    if child.rank is None:
        below = fabric.switch(child.node)
        return _rewrite(fabric, here.mac, below.mac, here.address, below.address, stream.source_ports[0],
                        stream.down[child.node])
    host, predecessor = ranks[child.rank], (child.rank - 1) % len(ranks)
    return _rewrite(fabric, here.mac, host.mac, ranks[predecessor].address, host.address,
                    stream.source_ports[predecessor], stream.connections[child.rank])


def _rewrite(
    fabric: Fabric, src_mac: str, dst_mac: str, src: str, dst: str, sport: int, to: int
) -> tuple[tuple[str, int], ...]:
    """Parameters of `rewrite` towards a connection, with what they change of a full packet's ICRC."""
    queue_pair = to << roce.OPERATION_BITS
    plain, reth = (roce.icrc_change(_ip(src), _ip(dst), sport, queue_pair, more + fabric.path_mtu)
                   for more in (0, roce.RETH_BYTES))
    return (*_addresses(src_mac, dst_mac, src, dst, sport, queue_pair), ("icrc", plain), ("icrc_reth", reth))


def _rewrite_rc(
    src_mac: str, dst_mac: str, src: str, dst: str, sport: int, queue_pair: int, region: int, rkey: int
) -> tuple[tuple[str, int], ...]:
    """Parameters of `rewrite_rc` towards a NIC's queue pair."""
    return (*_addresses(src_mac, dst_mac, src, dst, sport, queue_pair), ("region", region), ("rkey", rkey))


def _addresses(
    src_mac: str, dst_mac: str, src: str, dst: str, sport: int, queue_pair: int
) -> tuple[tuple[str, int], ...]:
    return (("src_mac", _mac(src_mac)), ("dst_mac", _mac(dst_mac)), ("src", _ip(src)), ("dst", _ip(dst)),
            ("sport", sport), ("queue_pair", queue_pair))


# ---- the rest -------------------------------------------------------------------------------------------------------


def _macs(fabric: Fabric) -> dict[str, int]:
    """The MAC addresses of all nodes, by name."""
    return {node.name: _mac(node.mac) for node in fabric.nodes}


def _forward(macs: Mapping[str, int], switch: str, hop: NextHop) -> tuple[tuple[str, int], ...]:
    return (("port", hop.port), ("src_mac", macs[switch]), ("dst_mac", macs[hop.node]))


def _seed(seed: int, sender: End, receiver: End) -> int:
    return zlib.crc32(f"{seed} {sender}>{receiver}".encode())


def _ip(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def _mac(mac: str) -> int:
    return int(mac.replace(":", ""), 16)
