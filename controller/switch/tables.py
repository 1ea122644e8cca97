# SPDX-License-Identifier: Apache-2.0
"""Makes the entries of p4src's tables that follow from the fabric alone; has the names of the program.

Those of the fold are made by fold_tables.py, those of routes and paths by path_tables.py.

    links    -> guard, clone sessions
    faults   -> fault (on the way in and out)       engine  -> congestion
    probes   -> route (to the CPU port), punt, a multicast group and its replica
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

from netfold.controller.switch.entities import Clone, Entity, Entry, MeterRate, Multicast
from netfold.fabric.graph import End, Fabric, Link, ip_number

ROUTERS: Final = "224.0.0.2"
"""Multicast address of all routers on a link (RFC 1112), such as link probes have: switches send them to the CPU."""
PROBE_PORT: Final = 0xC000
"""UDP source port of a link probe, to which the port that it leaves by is added (p4src/sizes.p4)."""
PROBE_GROUP: Final = 4095
"""Multicast group by which a switch sends a link probe to all its neighbours (p4src/sizes.p4)."""
PROBES_PER_LINK: Final = 110
"""Probes a second that `netfold.controller.health.liveness` may send over a link each way beside the regular ones: of a
suspect link, and where somebody waits for an answer.  As many short ones follow those that are lost."""
PUNT_HEADROOM: Final = 4
"""Ratio of the probes that may reach the CPU port to those that the controller sends: links that duplicate packets
duplicate probes too, and a switch that was late has several at once."""
CONNECTION: Final = "SwitchIngress.fold.connection.connection"
CONTRIBUTION: Final = "SwitchIngress.fold.connection.contribution"
CONTRIBUTION_RC: Final = "SwitchIngress.fold.connection.contribution_rc"
RESULT: Final = "SwitchIngress.fold.connection.result"
ACKNOWLEDGEMENT: Final = "SwitchIngress.fold.connection.acknowledgement"
ACKNOWLEDGES: Final = "SwitchIngress.fold.connection.acknowledges"
REPLICA: Final = "SwitchEgress.replica.replica"
REWRITE: Final = "SwitchEgress.replica.rewrite"
REWRITE_RC: Final = "SwitchEgress.replica.rewrite_rc"
PROBE: Final = "SwitchEgress.replica.probe"
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
UNREACHABLE: Final = "SwitchIngress.route.unreachable"
PATHS: Final = "SwitchIngress.route.paths"
POLICY: Final = f"{PATHS}.policy"
PIN: Final = f"{PATHS}.pin"
BENT: Final = f"{PATHS}.bent"
USE: Final = f"{PATHS}.use"
FAULT_IN: Final = "SwitchIngress.fault_in"
FAULT_OUT: Final = "SwitchEgress.fault_out"
CONGESTION: Final = "SwitchEgress.congestion.congestion"
MARK_ABOVE: Final = "SwitchEgress.congestion.mark_above"
TO_CPU: Final = "SwitchIngress.route.to_cpu"
_PUNT: Final = "SwitchIngress.route.punt"
PUNT: Final = f"{_PUNT}.punt"
REFUSED: Final = f"{_PUNT}.refused"
"""Counter by port: packets for the CPU port from ports where none may arrive, hosts above all."""
OVER_RATE: Final = f"{_PUNT}.over_rate"
"""Counter by port: packets for the CPU port beyond the rate of its meter."""
PORT_IN: Final = "SwitchIngress.port_in"
PORT_OUT: Final = "SwitchEgress.port_out"
CORRUPT: Final = "SwitchIngress.fold.corrupt"
UNPINNED: Final = f"{PATHS}.unpinned"
"""Counter of one cell: packets in mode "pinned" without a pin."""
OUTCOMES: Final = "SwitchIngress.fold.verdict.outcomes"
"""Counter of packets of trees by outcome: FIRST, ANSWERED, ... of p4src/verdict.p4."""
GAPS: Final = "SwitchIngress.fold.gaps"
"""Counter by port: gaps in a neighbour's packets, which it learned of at once by a NAK."""
FAULTS: Final = ("lost", "corrupted", "duplicated", "held")
"""Outcomes of injected faults, each with a counter (`fault_counter`) and a field of `wire.operator.Traffic`."""
REORDER_BY: Final = 8
"""Packets that overtake one that is held back: more than hosts tolerate as reordering (NF_REORDER of host/native)."""

MANAGED: Final = (
    GUARD, ROUTE, UPLINK, POLICY, PIN, BENT, PUNT, CONNECTION, ACKNOWLEDGEMENT, REPLICA, f"{FAULT_IN}.fault",
    f"{FAULT_OUT}.fault", CONGESTION,
)
"""Tables that the controller reconciles: it deletes entries that it does not know."""

MARK_BYTES: Final = 1 << 17
"""Payload bytes in a port's queue above which packets are marked (ECN) on softswitch: late enough for bursts, early
enough to avoid losses."""
BMV2_MARK_BYTES: Final = 1 << 15
"""The same on BMv2: half of what a tree has in flight there at 4096 bytes a packet."""
BMV2_MARK_DEPTH: Final = 16
"""Packets in a queue of BMv2 above which they are marked anyway: it holds 64, of whatever length."""


BySwitch = dict[str, list[Entity]]

Mode = Literal["pinned", "ecmp", "spray"]
"""How packets to a leaf choose among equally short uplinks: the actions of `policy` in p4src/paths.p4."""

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
    depth = MARK_BYTES // fabric.path_mtu
    if fabric.engine == "bmv2":
        depth = min(BMV2_MARK_DEPTH, BMV2_MARK_BYTES // fabric.path_mtu)
    return {s.name: [Entry(CONGESTION, (), MARK_ABOVE, (("depth", depth),))] for s in fabric.switches}


def probe_entries(fabric: Fabric) -> BySwitch:
    """Entities for link probes, which are addressed to all routers of a link: their route to the CPU port of every
    switch; an entry of `punt` for each port with a switch behind it, with the rate of its meter and what that switch
    sends; and the multicast group of these ports."""
    result: BySwitch = defaultdict(list)
    addresses, rate = {switch.name: ip_number(switch.address) for switch in fabric.switches}, _punt_rate(fabric)
    ports: defaultdict[str, list[int]] = defaultdict(list)
    for name in addresses:
        result[name].append(Entry(ROUTE, (("dst", (ip_number(ROUTERS), 32)),), TO_CPU))
    for link in fabric.links:
        if {end.node for end in link.ends} <= addresses.keys():
            for here, far in (link.ends, link.ends[::-1]):
                expected = (("address", addresses[far.node]), ("sport", PROBE_PORT + far.port))
                result[here.node].append(Entry(PUNT, (("ingress_port", here.port),), f"{_PUNT}.allow", expected, rate))
                ports[here.node].append(here.port)
    for name, those in ports.items():
        result[name].append(Multicast(PROBE_GROUP, tuple((port, 0) for port in sorted(those))))
        result[name].append(Entry(REPLICA, (("group", PROBE_GROUP), ("child", 0)), PROBE))
    return result


def _punt_rate(fabric: Fabric) -> MeterRate:
    """The rate of packets from one port to the CPU port, with a burst of a quarter of a second's packets."""
    regular = 1 / fabric.probe if fabric.probe else 0.0
    rate = math.ceil(PUNT_HEADROOM * (PROBES_PER_LINK + regular))
    return MeterRate(rate, math.ceil(rate / 4))


def guard_entries(fabric: Fabric) -> BySwitch:
    """Entries of `guard`: who is at the other end of each port's link, and of a host its addresses.  A port without a
    link has none, and takes nothing."""
    result: BySwitch = defaultdict(list)
    hosts = {host.name: (("address", ip_number(host.address)), ("fold_address", ip_number(fold) if fold else 0))
             for host, fold in zip(fabric.hosts, fabric.fold_addresses(), strict=True)}
    neighbours: dict[int, Entry] = {}  # one for all switches
    for link in fabric.links:
        for here, far in (link.ends, link.ends[::-1]):
            if here.node in hosts:
                continue
            key = (("port", here.port),)
            result[here.node].append(Entry(GUARD, key, HOST, hosts[far.node]) if far.node in hosts
                                     else neighbours.setdefault(here.port, Entry(GUARD, key, NEIGHBOUR)))
    return result


def clone_sessions(fabric: Fabric) -> BySwitch:
    """A clone session for each port with a link, by the port's number: copies that faults make, and NAKs for gaps."""
    result: BySwitch = defaultdict(list)
    switches = {switch.name for switch in fabric.switches}
    sessions: dict[int, Clone] = {}  # one for all switches
    for link in fabric.links:
        for end in link.ends:
            if end.node in switches:
                result[end.node].append(sessions.setdefault(end.port, Clone(end.port, end.port)))
    return result


def fixed_entries(fabric: Fabric, seeds: Mapping[int, int] | None = None) -> BySwitch:
    """All entries that depend on nothing but the fabric's description, and the seeds of some links' faults."""
    return merge([guard_entries(fabric), clone_sessions(fabric), fault_entries(fabric, seeds),
                  congestion_entries(fabric), probe_entries(fabric)])


def merge(parts: Iterable[Mapping[str, Sequence[Entity]]]) -> BySwitch:
    """The entities of all parts together, by switch."""
    result: BySwitch = defaultdict(list)
    for part in parts:
        for switch, entities in part.items():
            result[switch] += entities
    return result


def _seed(seed: int, sender: End, receiver: End) -> int:
    return zlib.crc32(f"{seed} {sender}>{receiver}".encode())


def mac_number(mac: str) -> int:
    """A MAC address as a key or parameter of an entry."""
    return int(mac.replace(":", ""), 16)
