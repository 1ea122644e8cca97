# SPDX-License-Identifier: Apache-2.0
"""Validates a fabric: an error names the field, what was expected and what was found."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from netfold.fabric.graph import (
    DEFAULT_TENANT,
    FAULTS,
    MAX_PORT,
    End,
    Fabric,
    FabricError,
    Link,
    Settings,
    Switch,
    bits_per_second,
)
from netfold.wire import roce

MAX_SOCKET_PATH: Final = 107
"""Bytes of a socket's path: sun_path of unix(7) without its terminating zero."""


MOST: Final = {"switch": 8192, "host": 1 << 16, "link": 1 << 18}
"""Most objects of a kind in a fabric, beyond any plausible plan or simulation: larger files are refused at once."""


def count(kind: str, number: int) -> None:
    """Check how many switches, hosts or links there are.  Raises FabricError."""
    if number > MOST[kind]:
        raise FabricError(f"{kind}: expected at most {MOST[kind]:,}, got {number:,}")


def validate(fabric: Fabric) -> None:
    """Check a fabric for contradictions with itself and with the switch program.  Raises FabricError."""
    for kind, things in (("switch", fabric.switches), ("host", fabric.hosts), ("link", fabric.links)):
        count(kind, len(things))
    _settings(fabric)
    _nodes(fabric)
    _links(fabric)
    _tenants(fabric)


def _settings(fabric: Settings) -> None:
    if fabric.path_mtu not in roce.PATH_MTUS:
        raise FabricError(f"fabric.path_mtu: expected {' or '.join(map(str, roce.PATH_MTUS))}, for which there is a "
                          f"switch program, got {fabric.path_mtu}")
    if not 0 <= fabric.seed < 2**32:
        raise FabricError(f"fabric.seed: expected 0..2^32-1, got {fabric.seed}")
    _grpc_address("fabric.jobs", fabric.jobs)
    if fabric.standby is not None:
        _grpc_address("fabric.standby", fabric.standby)
        if fabric.standby == fabric.jobs:
            raise FabricError(f"fabric.standby: expected another address than fabric.jobs, got {fabric.standby}")
    page = None if fabric.metrics is None else re.fullmatch(r"[^\s:]*:(\d{1,5})", fabric.metrics, re.ASCII)
    if fabric.metrics is not None and (page is None or int(page[1]) > 65535):
        raise FabricError(f"fabric.metrics: expected HOST:PORT, such as 127.0.0.1:9464, got {fabric.metrics!r}")
    if fabric.probe != 0 and not 0.01 <= fabric.probe <= 60:
        raise FabricError(f"fabric.probe: expected 0 (off) or 0.01..60 seconds, got {fabric.probe}")
    if not 2 <= fabric.misses <= 1000:
        raise FabricError(f"fabric.misses: expected 2..1000 probes, got {fabric.misses}")
    if not 1 <= fabric.lease <= 3600:
        raise FabricError(f"fabric.lease: expected 1..3600 seconds, got {fabric.lease}")
    if not 0 <= fabric.steady <= 3600:
        raise FabricError(f"fabric.steady: expected 0..3600 seconds, got {fabric.steady}")
    if not 0 <= fabric.grace <= 3600:
        raise FabricError(f"fabric.grace: expected 0..3600 seconds, got {fabric.grace}")
    if (fabric.certificate is None) != (fabric.key is None):
        given, other = ("certificate", "key") if fabric.key is None else ("key", "certificate")
        raise FabricError(f"fabric.{other}: TLS needs both certificate and key, got only fabric.{given}")
    if fabric.certificate is not None and fabric.jobs.startswith("unix:") and fabric.metrics is None:
        raise FabricError(f"fabric.certificate: TLS goes with fabric.jobs = \"host:port\", or with fabric.metrics, got "
                          f"{fabric.jobs}; a unix socket is guarded by the permissions of its folder")
    if fabric.client_ca is not None and (fabric.certificate is None or fabric.jobs.startswith("unix:")):
        raise FabricError("fabric.client_ca: certificates of clients go with TLS: expected fabric.certificate, "
                          f"fabric.key and fabric.jobs = \"host:port\", got fabric.jobs = {fabric.jobs!r}")
    _p4runtime("fabric", fabric, fabric.p4runtime_ca)


def _p4runtime(where: str, said: Settings | Switch, ca: str | None) -> None:
    """Check that the files of TLS with switches go together."""
    if (said.p4runtime_certificate is None) != (said.p4runtime_key is None):
        raise FabricError(f"{where}.p4runtime_certificate: expected it together with {where}.p4runtime_key, got one of "
                          "the two")
    if said.p4runtime_certificate is not None and ca is None:
        raise FabricError(f"{where}.p4runtime_certificate: expected {where}.p4runtime_ca with it, which says whose "
                          "certificates the switches have")


def _nodes(fabric: Fabric) -> None:
    """Check that names, addresses, MACs and P4Runtime targets are well-formed and unique."""
    folding = ipaddress.IPv4Network(roce.FOLD_NETWORK)
    if any(host.rdma for host in fabric.hosts) and len(fabric.hosts) > folding.num_addresses - 2:
        raise FabricError(f"host: expected at most {folding.num_addresses - 2} where one has rdma, since each host has "
                          f"a number in {folding}, got {len(fabric.hosts)}")
    if not fabric.switches:
        raise FabricError("switch: expected at least one [[switch]], got none")
    unique: dict[tuple[str, str], str] = {}
    devices: dict[tuple[str, int], str] = {}

    def once(kind: str, value: str, where: str) -> None:
        if (kind, value) in unique:
            raise FabricError(f"{where}: {value} is taken by {unique[kind, value]}; every {kind} must be unique")
        unique[kind, value] = where

    paths = [f"switch[{i}]" for i in range(len(fabric.switches))] + [f"host[{i}]" for i in range(len(fabric.hosts))]
    for path, node in zip(paths, fabric.nodes, strict=True):
        if not re.fullmatch(r"[A-Za-z][\w.-]*", node.name):
            raise FabricError(f"{path}.name: expected a letter, then letters, digits, '_', '.', '-'; got {node.name!r}")
        once("name", node.name, f"{path}.name")
        address = _ipv4(f"{path}.address", node.address)
        if ipaddress.IPv4Address(address) in folding:
            raise FabricError(f"{path}.address: expected one outside of {folding}, whose addresses are for what "
                              f"switches fold (rdma), got {address}")
        once("address", address, f"{path}.address")
        once("mac", _mac(f"{path}.mac", node.mac), f"{path}.mac")
        if isinstance(node, Switch):
            if not 0 <= node.device_id < 2**64:
                raise FabricError(f"{path}.device_id: expected 0..2^64-1, got {node.device_id}")
            _grpc_address(f"{path}.grpc", node.grpc)
            _p4runtime(path, node, node.p4runtime_ca or fabric.p4runtime_ca)
            device = (node.grpc, node.device_id)
            if device in devices:
                raise FabricError(f"{path}: {node.name} and {devices[device]} share {node.grpc} and device_id "
                                  f"{node.device_id}; give one of them another")
            devices[device] = node.name
            if node.place is not None:
                if min(node.place) < 0:
                    raise FabricError(f"{path}.place: expected row and column from 0, got {list(node.place)}")
                once("place", f"row {node.place[0]}, column {node.place[1]}", f"{path}.place")


def _links(fabric: Fabric) -> None:
    """Check that every link joins two unused ports, that hosts have one link, and that all nodes are connected."""
    switches, hosts = {s.name for s in fabric.switches}, {h.name for h in fabric.hosts}
    nodes = switches | hosts
    used: dict[End, str] = {}
    linked: set[str] = set()
    for i, link in enumerate(fabric.links):
        where = f"link[{i}]"
        try:
            ends = link.ends
        except FabricError as error:
            raise FabricError(f"{where}: {error}") from error
        for end in ends:
            if end.node not in nodes:
                raise FabricError(f"{where}: no switch or host is called {end.node}")
            lowest = 1 if end.node in switches else 0
            if not lowest <= end.port <= MAX_PORT:
                raise FabricError(f"{where}: {end}: expected a port of {lowest}..{MAX_PORT}")
            if end in used:
                raise FabricError(f"{where}: {end} is already an end of {used[end]}")
            used[end] = where
            if end.node in hosts and end.node in linked:
                raise FabricError(f"{where}: host {end.node} has a link already; a host has one")
            linked.add(end.node)
        if ends[0].node == ends[1].node:
            raise FabricError(f"{where}: both ends are on {ends[0].node}")
        if ends[0].node in hosts and ends[1].node in hosts:
            raise FabricError(f"{where}: {link.a} and {link.b} are both hosts; a link needs a switch")
        _rate_and_faults(where, link, to_host=bool({end.node for end in ends} & hosts))
    for name in sorted((hosts | switches) - linked):
        if name in hosts or len(fabric.switches) > 1:
            raise FabricError(f"{name} has no [[link]]")
    if len(apart := pieces(fabric.links, nodes)) > 1:
        named = " | ".join(f"{', '.join(sorted(piece)[:4])}{'' if len(piece) < 5 else f' and {len(piece) - 4} more'}"
                           for piece in sorted(apart, key=len, reverse=True)[:4])
        more = "" if len(apart) < 5 else f" | and {len(apart) - 4} more pieces"
        raise FabricError(f"link: the fabric falls apart into {len(apart)} pieces that no link connects: {named}{more}")


def pieces(links: Sequence[Link], nodes: Collection[str]) -> list[set[str]]:
    """The nodes in sets that links connect.  Every command reads a fabric, and few of them plan with networkx, whose
    import alone takes longer than all else that they do."""
    beside: dict[str, set[str]] = defaultdict(set)
    for one, other in (link.ends for link in links):
        beside[one.node].add(other.node)
        beside[other.node].add(one.node)
    left, found = set(nodes), []
    while left:
        piece: set[str] = set()
        front = {left.pop()}
        while front:
            piece |= front
            front = {node for at in front for node in beside[at]} - piece
        left -= piece
        found.append(piece)
    return found


def _tenants(fabric: Fabric) -> None:
    """Check that tenants have names and tokens of their own, and that there is an operator's token if there is any."""
    names: set[str] = set()
    for i, tenant in enumerate(fabric.tenants):
        where = f"tenant[{i}]"
        if not re.fullmatch(r"[\w.-]{1,64}", tenant.name):
            raise FabricError(f"{where}.name: expected 1 to 64 letters, digits or any of _.-, got {tenant.name!r}")
        if tenant.name in names:
            raise FabricError(f"{where}.name: there is a tenant {tenant.name} already")
        names.add(tenant.name)
        if tenant.token_file is None and tenant.name != DEFAULT_TENANT:
            raise FabricError(f"{where}.token_file: expected the file of this tenant's token; only the tenant "
                              '"default" goes without, whose jobs join by fabric.job_token_file')
        if tenant.token_file is not None and tenant.name == DEFAULT_TENANT:
            raise FabricError(f'{where}.token_file: the token of the tenant "default" is in fabric.job_token_file')
        for name in ("slots", "jobs"):
            if (value := getattr(tenant, name)) is not None and value < 0:
                raise FabricError(f"{where}.{name}: expected 0 or more, got {value}; leave it out for no limit")
    others = [name for name in ("job_token_file", "viewer_token_file") if getattr(fabric, name) is not None]
    others += [f"tenant {tenant.name}'s token_file" for tenant in fabric.tenants if tenant.token_file is not None]
    if others and fabric.operator_token_file is None:
        raise FabricError(f"fabric.operator_token_file: expected one, since there is {others[0]}: without it nobody "
                          "could drain, drop or repair anything")


def _rate_and_faults(where: str, link: Link, *, to_host: bool) -> None:
    faults = {name: getattr(link, name) for name in FAULTS}
    for name, share in faults.items():
        if not 0.0 <= share <= 1.0:
            raise FabricError(f"{where}.{name}: expected a share of 0..1, got {share}")
    if sum(faults.values()) > 1.0:
        raise FabricError(f"{where}: a packet has one fault at most, so that shares add up to 1 or less; got {faults}")
    if link.corrupt and not to_host:
        raise FabricError(f"{where}.corrupt: expected a link to a host, whose first switch checks the ICRC; "
                          f"{link.a} and {link.b} are switches")
    if link.rate is not None:
        try:
            bits_per_second(link.rate)
        except FabricError as error:
            raise FabricError(f"{where}.rate: {error}") from error


def _ipv4(where: str, text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise FabricError(f"{where}: expected an IPv4 address, got {text!r}") from error
    if address.is_multicast or address.is_unspecified:
        raise FabricError(f"{where}: expected a unicast address, got {text}")
    return str(address)


def _mac(where: str, text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text) or int(text[:2], 16) & 1:
        raise FabricError(f"{where}: expected a unicast MAC address such as 02:00:0a:00:01:01, got {text!r}")
    return text.lower()


def _grpc_address(where: str, text: str) -> None:
    if re.fullmatch(r"unix:/.+", text):
        if len(text.removeprefix("unix:").encode()) > MAX_SOCKET_PATH:
            raise FabricError(f"{where}: expected a socket path of at most {MAX_SOCKET_PATH} bytes, as the kernel has "
                              f"it, got {text!r}; use a shorter folder")
        return
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise FabricError(f"{where}: expected HOST:PORT or unix:/PATH, got {text!r}")
