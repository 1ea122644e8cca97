# SPDX-License-Identifier: Apache-2.0
"""Makes a fabric of a bare graph: sites with hosts, cables between them, and the settings of all generated fabrics."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, Unpack

from netfold.fabric import validity
from netfold.fabric.graph import MAX_PORT, Engine, Fabric, FabricError, Host, Link, Role, Switch

PATH_MTU: Final = 4096
"""Path MTU of a generated fabric, whose links carry either: the one that costs the processor least per byte, on both
engines."""
MOST_HOSTS: Final = 254
"""Most hosts of a switch: they share the first three bytes of their addresses."""


class Faults(TypedDict, total=False):
    """Faults injected on every link of a generated fabric, ``corrupt`` on links of hosts alone; see `Link`."""

    loss: float
    duplicate: float
    reorder: float
    corrupt: float


class FabricOptions(Faults, total=False):
    """Settings of a generated fabric of any topology; `assemble` has the defaults."""

    rate: str | None
    """Rate in tc's units, such as ``1gbit``, of links without a rate in the topology; None: not limited."""
    seed: int
    """Seed of the injected faults."""
    engine: Engine
    path_mtu: int
    """Payload bytes of a data packet."""
    rundir: Path | None
    """Folder in which all gRPC addresses are unix sockets; None: ``base_port``."""
    base_port: int
    """The job service's TCP port on 127.0.0.1; the switches have the following ports."""
    rdma: bool
    """True if all hosts have a NIC for RDMA."""


class Site(NamedTuple):
    """A switch and what hangs on it."""

    name: str
    role: Role
    hosts: tuple[str | None, ...] = ()
    """Names of its hosts; None: h1, h2, ... through the fabric."""
    host_rates: tuple[str | None, ...] = ()
    """Rates of its hosts' links; empty, or None: that of all links."""
    place: tuple[int, int] | None = None
    """Row and column in a mesh; see `Switch`."""


class Edge(NamedTuple):
    """A link between two switches, by name; of ``a``'s ports it takes the next one after those of cables before."""

    a: str
    b: str
    rate: str | None = None
    """None: that of all links."""
    faults: Faults = Faults()
    """Its own, instead of those of all links."""


def sites(names: Sequence[str], role: Role, hosts: Sequence[int] = ()) -> list[Site]:
    """Switches of one role, with so many hosts each; default: none."""
    return [Site(name, role, (None,) * number) for name, number in zip(names, hosts or [0] * len(names), strict=True)]


def spread(hosts: int, leaves: int) -> list[int]:
    """Number of hosts on each leaf: equal, or one more on the first leaves."""
    return [hosts // leaves + (leaf < hosts % leaves) for leaf in range(leaves)]


def assemble(
    name: str,
    switches: Sequence[Site],
    cables: Sequence[Edge],
    *,
    first: int = 1,
    rate: str | None = None,
    seed: int = 0,
    engine: Engine = "softswitch",
    path_mtu: int = PATH_MTU,
    rundir: Path | None = None,
    base_port: int = 50050,
    rdma: bool = False,
    **faults: Unpack[Faults],
) -> Fabric:
    """A fabric of switches with hosts, and cables between the switches.

    first     number of the first switch in addresses
    rate ...  see `FabricOptions`
    Switch n, from ``first``, is 10.255.n, and its h-th host 10.n.h.  A switch's ports count up from 1: hosts, then
    cables in their order.  Raises FabricError for too many hosts or ports, and for all that `validate` refuses.
    """

    def grpc(node: str, number: int) -> str:
        return f"unix:{rundir / node}.sock" if rundir else f"127.0.0.1:{base_port + number}"

    for kind, number in (("switch", len(switches)), ("host", sum(len(site.hosts) for site in switches)),
                         ("link", len(cables))):
        validity.count(kind, number)
    degrees = Counter({site.name: len(site.hosts) for site in switches})
    degrees.update(end for cable in cables for end in (cable.a, cable.b))
    for site in switches:
        if len(site.hosts) > MOST_HOSTS or degrees[site.name] > MAX_PORT:
            raise FabricError(f"{name}: {site.name} has {len(site.hosts)} hosts and {degrees[site.name]} links in all: "
                              f"expected at most {MOST_HOSTS} hosts and {MAX_PORT} links, as switches have ports")
    inside = faults.copy()
    inside.pop("corrupt", None)
    cabled: dict[str, list[Edge]] = defaultdict(list)
    for cable in cables:
        cabled[cable.a].append(cable)
    ports = {site.name: count(1) for site in switches}
    made: list[Switch] = []
    hosts: list[Host] = []
    links: list[Link] = []
    for n, site in enumerate(switches, first):
        address, place = f"10.255.{n >> 8}.{n & 255}", len(made) + 1
        made.append(Switch(site.name, site.role, place, grpc(site.name, place), address, _mac_of(address),
                           place=site.place))
        rates = site.host_rates or (None,) * len(site.hosts)
        for h, (called, own) in enumerate(zip(site.hosts, rates, strict=True), 1):
            address = f"10.{n >> 8}.{n & 255}.{h}"
            hosts.append(Host(called or f"h{len(hosts) + 1}", address, _mac_of(address), rdma))
            links.append(Link(f"{site.name}:{next(ports[site.name])}", f"{hosts[-1].name}:0", own or rate, **faults))
        links += [Link(f"{site.name}:{next(ports[site.name])}", f"{cable.b}:{next(ports[cable.b])}",
                       cable.rate or rate, **(inside | cable.faults)) for cable in cabled[site.name]]
    fabric = Fabric(name, engine, grpc("controller", 0), path_mtu, seed=seed,
                    switches=tuple(made), hosts=tuple(hosts), links=tuple(links))
    validity.validate(fabric)
    return fabric


def _mac_of(address: str) -> str:
    """A locally administered MAC address whose last four bytes are the IPv4 address."""
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)
