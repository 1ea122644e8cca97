# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: switches, hosts and links.

`file` reads and writes it, `generate` makes regular ones, `validity` checks one against itself.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec

from netfold.wire import roce

if TYPE_CHECKING:  # and imported where a graph is made or searched: it takes longest of all that a command imports
    import networkx as nx

Engine = Literal["softswitch", "bmv2"]
PlannerName = Literal["fewest_pieces", "equal_split"]
"""The planners of paths."""
Role = Literal["leaf", "agg", "spine"]
"""A switch's tier: "agg", an aggregation switch, stands between leaves and spines in fabrics of three tiers."""

CPU_PORT: Final = 510
"""The switch port of packet-in and packet-out: CPU_PORT of p4src/sizes.p4.  Ports of links lie below it."""
MAX_PORT: Final = CPU_PORT - 1
FAULTS: Final = ("loss", "duplicate", "reorder", "corrupt")
"""The faults that can be injected on a link, each as a share of its packets."""
Node = TypeVar("Node", "Switch", "Host", "Switch | Host")

_RATE_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}


class FabricError(ValueError):
    """An invalid fabric; the message names the field, what was expected and what was found.

    Remedy: correct the field of the fabric file that the message begins with. `netfold fabric` writes a whole file to
    compare with, docs/controller.md explains each field.
    """


class End(NamedTuple):
    """One end of a link."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch of the fabric: where its P4Runtime server listens, and its addresses."""

    name: str
    role: Role
    device_id: int
    grpc: str
    """P4Runtime address, ``host:port`` or ``unix:/path``."""
    address: str
    """IPv4 address of this switch as an end point of RoCE packets between switches."""
    mac: str
    p4runtime_ca: str | None = None
    """Overrides the fabric's CA certificate, as the next two fields override the fabric's."""
    p4runtime_certificate: str | None = None
    p4runtime_key: str | None = None
    place: tuple[int, int] | None = None
    """Row and column, from 0, in a mesh or torus, whose neighbouring places are linked; None: it is in no mesh."""


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training node with one link into the fabric."""

    name: str
    address: str
    mac: str
    rdma: bool = False
    """True if it has a NIC for RDMA, whose queue pairs let a rank fold; it then has a fold address."""


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A full-duplex cable between ``node:port`` and ``node:port``."""

    a: str
    b: str
    rate: str | None = None
    """Rate of each direction in tc's units, such as ``1gbit``; None: not limited."""
    loss: float = 0.0
    """Share of packets lost in each direction, 0..1."""
    duplicate: float = 0.0
    """Share of packets that arrive twice."""
    reorder: float = 0.0
    """Share of packets that later ones overtake."""
    corrupt: float = 0.0
    """Share of packets whose payload is changed on the way from a host to its switch."""

    @property
    def ends(self) -> tuple[End, End]:
        """The two ends, parsed.  Raises FabricError for text that is not NODE:PORT."""
        return _end(self.a), _end(self.b)


DEFAULT_TENANT: Final = "default"
"""The tenant of jobs that join by ``job_token_file``, by the operator's token, or without any."""


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of users that may start jobs, with its limits; every job belongs to one tenant."""

    name: str
    token_file: str | None = None
    """File of mode 0600 with the token by which its ranks join; the tenant "default" has ``job_token_file``."""
    slots: int | None = None
    """Most slots that all its jobs together may hold on any one switch; None: no limit."""
    jobs: int | None = None
    """Most jobs at once, including those that still wait for ranks; None: no limit."""
    priority: int = 0
    """If slots are short, a job of a higher priority takes them from jobs of a lower one, which continue without
    folding."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section [fabric] of a fabric file: settings of the fabric as a whole."""

    name: str
    engine: Engine
    jobs: str
    """gRPC address of the controller's job service, ``host:port`` or ``unix:/path``."""
    path_mtu: int = roce.PATH_MTU
    planner: PlannerName = "fewest_pieces"
    """How flows that are not folded are cut over paths (paths.py): "equal_split" is the paper's."""
    seed: int = 0
    """Seed of the injected faults: the same seed hits the same packets."""
    faults: bool = False
    """True if the switches' program can inject faults even if no link has any, so that `netfold fault` can."""
    probe: float = 0.5
    """Seconds between probes of every link between switches; 0: links are not probed."""
    misses: int = 5
    """Probes lost in a row before a link counts as down; a link with injected losses gets more."""
    lease: float = 15.0
    """Seconds within which each rank must have registered (Watch) after its plan, or it counts as lost."""
    steady: float = 2.0
    """Hold-down time: seconds that a switch or link must have been up again before running jobs return to it."""
    operator_token_file: str | None = None
    """File of mode 0600 with the token that permits everything; required if there is any other token."""
    job_token_file: str | None = None
    """File with the token by which ranks of no particular tenant join."""
    viewer_token_file: str | None = None
    """File with the token that permits reading: status, metrics and page."""
    certificate: str | None = None
    """PEM file of the job service's certificate; with ``key``, the file of its private key, the service uses TLS."""
    key: str | None = None
    client_ca: str | None = None
    """PEM file of the certificates that sign those of ranks and operators, which they must then have; None: they need
    none."""
    p4runtime_ca: str | None = None
    """PEM file of the certificates that sign those of the switches; P4Runtime then uses TLS, at ``host:port``."""
    p4runtime_certificate: str | None = None
    """PEM file of the certificate that the controller shows the switches, with ``p4runtime_key``; None: none."""
    p4runtime_key: str | None = None
    fabric_key_file: str | None = None
    """File, for the controller's user alone, of the fabric key, which seals the data that ranks keep for the
    controller; None: a file in $XDG_STATE_HOME/netfold.  It is created at the first start."""
    standby: str | None = None
    """gRPC address at which the standby serves jobs once the controller has died (`netfold up --standby`); None: there
    is none."""
    grace: float = 30.0
    """Seconds after its start for which a controller keeps the switches' state of jobs that it does not know, and waits
    for their ranks to register."""
    metrics: str | None = None
    """``host:port`` of the controller's web page and of its metrics for Prometheus; None: neither."""
    state: str | None = None
    """File in which the controller stores which switches and links are drained, across its restarts; None: not
    stored."""


class Fabric(Settings, frozen=True, kw_only=True, dict=True):
    """A fabric: its settings, switches, hosts and links.  `file.load` and `generate` make one and check it."""

    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    tenants: tuple[Tenant, ...] = ()

    @property
    def controllers(self) -> str:
        """The addresses at which jobs are served: the controller's, and its standby's after a comma."""
        return self.jobs if self.standby is None else f"{self.jobs},{self.standby}"

    @property
    def faulty(self) -> bool:
        """True if faults are injected on any link, or may be: the program supports that only if it is compiled in."""
        return self.faults or any(getattr(link, fault) for link in self.links for fault in FAULTS)

    @property
    def nodes(self) -> tuple[Switch | Host, ...]:
        """All switches, then all hosts."""
        return self.switches + self.hosts

    def switch(self, name: str) -> Switch:
        """The switch with this name.  Raises KeyError."""
        return _named(self._switches, name)

    def p4runtime_files(self, name: str) -> tuple[str | None, str | None, str | None]:
        """The PEM files of TLS with a switch: its CA, the controller's certificate and key.  What the switch does not
        say is the fabric's; all None at a unix socket, which is never TLS.  Raises KeyError."""
        switch = self.switch(name)
        if switch.grpc.startswith("unix:"):
            return None, None, None
        certificate, key = switch.p4runtime_certificate, switch.p4runtime_key
        if certificate is None:
            certificate, key = self.p4runtime_certificate, self.p4runtime_key
        return switch.p4runtime_ca or self.p4runtime_ca, certificate, key

    def host(self, name: str) -> Host:
        """The host with this name.  Raises KeyError."""
        return _named(self._hosts, name)

    def node(self, name: str) -> Switch | Host:
        """The switch or host with this name.  Raises KeyError."""
        return self._switches.get(name) or _named(self._hosts, name)

    def tenant(self, name: str) -> Tenant:
        """The tenant with this name; the one called DEFAULT_TENANT without limits if the fabric file has no such."""
        return next((tenant for tenant in self.tenants if tenant.name == name), Tenant(DEFAULT_TENANT))

    def fold_address(self, host: Host) -> str:
        """The address in FOLD_NETWORK under which a host's NIC takes what switches have folded: number 1 + the host's
        place in the fabric.  Empty for a host without RDMA."""
        return self._fold_addresses[host.name] if host.rdma else ""

    def fold_addresses(self) -> list[str]:
        """The fold addresses of all hosts, in their order."""
        network = ipaddress.IPv4Network(roce.FOLD_NETWORK)
        return [str(network[number]) if host.rdma else "" for number, host in enumerate(self.hosts, 1)]

    def host_at(self, address: str) -> Host | None:
        """The host with this IPv4 address; None if there is none."""
        return self._by_address.get(address)

    # dictionaries for look-ups; they are no fields, and a copy with other hosts makes its own
    @cached_property
    def _switches(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _by_address(self) -> dict[str, Host]:
        return {host.address: host for host in self.hosts}

    @cached_property
    def _fold_addresses(self) -> dict[str, str]:
        return dict(zip(self._hosts, self.fold_addresses(), strict=True))

    def leaf_of(self) -> dict[str, str]:
        """The name of each host's leaf, by the host's name."""
        return dict(self._leaf_of)

    @cached_property
    def _leaf_of(self) -> dict[str, str]:
        found = {}
        for link in self.links:
            a, b = link.ends
            if a.node not in self._switches:
                found[a.node] = b.node
            elif b.node not in self._switches:
                found[b.node] = a.node
        return found

    def graph(self) -> nx.MultiGraph[str]:
        """The fabric as a networkx graph, which the planners take.

        Nodes carry ``kind`` ("switch" or "host"), ``address`` and ``mac``, switches ``role`` and ``place`` too; edges,
        whose key is the link's number, carry ``ports`` (node name -> port), ``rate`` (bit/s or None) and ``loss``.
        """
        import networkx as nx

        graph: nx.MultiGraph[str] = nx.MultiGraph(name=self.name)
        for s in self.switches:
            graph.add_node(s.name, kind="switch", role=s.role, address=s.address, mac=s.mac, place=s.place)
        for h in self.hosts:
            graph.add_node(h.name, kind="host", address=h.address, mac=h.mac)
        for number, link in enumerate(self.links):
            a, b = link.ends
            rate = None if link.rate is None else bits_per_second(link.rate)
            graph.add_edge(a.node, b.node, number, ports={a.node: a.port, b.node: b.port}, rate=rate, loss=link.loss)
        return graph


class Up(NamedTuple):
    """The live part of a fabric: switches and hosts by name, links by number."""

    nodes: frozenset[str]
    links: frozenset[int]

    @classmethod
    def of(cls, graph: nx.MultiGraph[str]) -> Up:
        """All nodes and links of a graph made by `Fabric.graph`."""
        return cls(frozenset(graph), frozenset(number for *_, number in graph.edges(keys=True)))

    def graph(self, fabric: Fabric, whole: nx.MultiGraph[str] | None = None) -> nx.MultiGraph[str]:
        """The live part of the fabric's graph, in its order.

        whole  that graph, frozen.  The part, which is frozen as well, shares with it what is not beside anything down.
        """
        import networkx as nx

        if whole is None:
            whole = nx.freeze(fabric.graph())
        adjacent = dict(whole.adjacency())
        gone = adjacent.keys() - self.nodes
        for node in gone:
            del adjacent[node]
        changed = {near for node in gone for near in whole.adj[node]} - gone
        changed.update(end.node for number in {*range(len(fabric.links))} - self.links
                       for end in fabric.links[number].ends if end.node not in gone)
        for node in changed:
            adjacent[node] = {near: links for near, between in adjacent[node].items() if near not in gone and (
                links := between if self.links.issuperset(between) else
                {number: data for number, data in between.items() if number in self.links})}
        part: nx.MultiGraph[str] = nx.MultiGraph(name=fabric.name)
        part._node = {node: data for node, data in whole.nodes(data=True) if node in adjacent}
        part._adj = adjacent
        part.graph["whole"] = whole
        return nx.freeze(part)


def ip_number(address: str) -> int:
    """An IPv4 address as a number."""
    return int.from_bytes(socket.inet_aton(address), "big")


def bits_per_second(rate: str) -> int:
    """A rate in tc's units (``100mbit``, ``2.5gbit``) in bit/s.  Raises FabricError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)(bit|kbit|mbit|gbit|tbit)", rate, re.ASCII)
    if not match or float(match[1]) == 0:
        raise FabricError(f"expected a rate such as 100mbit, 1gbit or 2.5gbit, got {rate!r}")
    return round(float(match[1]) * _RATE_UNITS[match[2]])


def rate_in_words(rate: str) -> str:
    """A rate in tc's units as a figure's title has it: 100 Mb/s.  Raises FabricError."""
    bits = bits_per_second(rate)
    unit, size = next(((unit, size) for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6)) if bits >= size), ("kb/s", 1e3))
    return f"{bits / size:g} {unit}"


def _named(nodes: Mapping[str, Node], name: str) -> Node:
    if name not in nodes:
        raise KeyError(f"the fabric has no {name}")
    return nodes[name]


@lru_cache(maxsize=1 << 19)
def _end(text: str) -> End:
    node, _, port = text.rpartition(":")
    if not node or not re.fullmatch(r"\d{1,9}", port, re.ASCII):
        raise FabricError(f"expected NODE:PORT, got {text!r}")
    return End(node, int(port))
