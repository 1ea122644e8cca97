# SPDX-License-Identifier: Apache-2.0
"""Makes the entries of the fold (p4src/fold.p4) from streams, and reads from entries which job holds what.

    streams -> connection, acknowledgement, replica, multicast groups
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from netfold.controller.switch.entities import Entity, Entry, Multicast
from netfold.controller.switch.tables import (
    ACKNOWLEDGEMENT,
    ACKNOWLEDGES,
    CONNECTION,
    CONTRIBUTION,
    CONTRIBUTION_RC,
    REPLICA,
    RESULT,
    REWRITE,
    REWRITE_RC,
    BySwitch,
    mac_number,
)
from netfold.fabric.folding.slots import Holding, Stream
from netfold.fabric.folding.trees import Child, Fold
from netfold.fabric.graph import Fabric, Host, ip_number
from netfold.wire import roce

PARENT: Final = 0xFFFF
"""The key ``child`` of the replica entry for the parent: PARENT of p4src/sizes.p4."""
ANSWERS: Final = 0x4000
"""Added to a NIC's number: the key ``child`` of the replica entry for what answers it.  ANSWERS of p4src/sizes.p4."""


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
                fabric, here.mac, parent.mac, here.address, parent.address, stream.source_ports[0], roce.UDP_PORT,
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


def holding(hosts: Mapping[int, str], entities: Iterable[Entity]) -> Holding:
    """The numbers that a job's entities on one switch stand for.  The queue pairs of NICs are not ours to hand out.

    hosts  the fabric's hosts by their addresses, as numbers
    """
    ranges, groups, connections, flows, source_ports = set(), set(), set(), set(), set()
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
                if entity.action == CONTRIBUTION and values["src"] in hosts:
                    source_ports.add((hosts[values["src"]], values["sport"]))
    return Holding(frozenset(ranges), frozenset(groups), frozenset(connections), frozenset(flows),
                   frozenset(source_ports))


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
    return (("ingress_port", port), ("src", ip_number(src)), ("dst", ip_number(dst)), ("sport", sport),
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
    key = (("ingress_port", fold.children[number].port), ("src", ip_number(host.address)),
           ("dst", ip_number(peer_address)), ("sport", 0), ("queue_pair", other.in_qp))
    group, *tree = _tree(stream, fold, number)
    contribution = (group, ("child", number), *tree, ("root", int(fold.is_root)), ("parent_port", fold.parent_port),
                    ("operation", stream.operation), ("region", other.address), ("first_psn", stream.psn))
    acknowledges = (_flow(stream, fold, number), ("epoch", stream.epoch))
    acknowledged = (("src", ip_number(peer_address)), ("dst", ip_number(host.address)), ("queue_pair", own.out_qp))
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
                        roce.UDP_PORT, stream.down[child.node])
    host, predecessor = ranks[child.rank], (child.rank - 1) % len(ranks)
    return _rewrite(fabric, here.mac, host.mac, ranks[predecessor].address, host.address,
                    stream.source_ports[predecessor], stream.udp_ports[child.rank], stream.connections[child.rank])


def _rewrite(
    fabric: Fabric, src_mac: str, dst_mac: str, src: str, dst: str, sport: int, dport: int, to: int
) -> tuple[tuple[str, int], ...]:
    """Parameters of `rewrite` towards a connection, with what they change of a full packet's ICRC."""
    queue_pair = to << roce.OPERATION_BITS
    plain, reth = (roce.icrc_change(ip_number(src), ip_number(dst), sport, dport, queue_pair, more + fabric.path_mtu)
                   for more in (0, roce.RETH_BYTES))
    return (*_addresses(src_mac, dst_mac, src, dst, sport), ("dport", dport), ("queue_pair", queue_pair),
            ("icrc", plain), ("icrc_reth", reth))


def _rewrite_rc(
    src_mac: str, dst_mac: str, src: str, dst: str, sport: int, queue_pair: int, region: int, rkey: int
) -> tuple[tuple[str, int], ...]:
    """Parameters of `rewrite_rc` towards a NIC's queue pair."""
    return (*_addresses(src_mac, dst_mac, src, dst, sport), ("queue_pair", queue_pair), ("region", region),
            ("rkey", rkey))


def _addresses(src_mac: str, dst_mac: str, src: str, dst: str, sport: int) -> tuple[tuple[str, int], ...]:
    return (("src_mac", mac_number(src_mac)), ("dst_mac", mac_number(dst_mac)), ("src", ip_number(src)),
            ("dst", ip_number(dst)), ("sport", sport))
