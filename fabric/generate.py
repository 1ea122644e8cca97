# SPDX-License-Identifier: Apache-2.0
"""Regular fabrics: leaf-spine and three-tier, also from the text that `--topo` takes.

    leafspine,LEAVES,SPINES,HOSTS                 every leaf on every spine
    threetier,PODS,LEAVES,AGGS,SPINES,HOSTS       per pod LEAVES leaves, each linked to AGGS aggregation switches;
                                                  spine s is linked to aggregation switch s mod AGGS of every pod, so
                                                  that each spine is the root of one tree
    dual,FORM or triple,FORM                      two or three planes: fabrics of that form which share their hosts
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from netfold.fabric.graph import MAX_PORT, Engine, Fabric, FabricError, Host, Link, Role, Switch
from netfold.fabric.validity import validate

FORMS: Final = {
    "leafspine": "leafspine,LEAVES,SPINES,HOSTS",
    "threetier": "threetier,PODS,LEAVES,AGGS,SPINES,HOSTS",
}
"""The topologies that `parse` takes, by their first word."""
PLANES: Final = {"dual": 2, "triple": 3}
"""Number of planes by the word that stands before the topology in `parse_planes`."""
PLANE_NAMES: Final = "abcdefgh"
"""Letters that name planes, in order."""


PATH_MTUS: Final[dict[Engine, int]] = {"softswitch": 4096, "bmv2": 1024}
"""Path MTU of a generated fabric, whose links carry either, by engine: what costs the processor least a byte."""


class Faults(TypedDict, total=False):
    """Faults injected on every link of a generated fabric, ``corrupt`` on links of hosts alone; see `Link`."""

    loss: float
    duplicate: float
    reorder: float
    corrupt: float


class FabricOptions(Faults, total=False):
    """Settings of a generated fabric of any topology; `assemble` has the defaults."""

    rate: str | None
    """Rate of every link in tc's units, such as ``1gbit``; None: not limited."""
    seed: int
    """Seed of the injected faults."""
    engine: Engine
    path_mtu: int | None
    """Payload bytes of a data packet; None: PATH_MTUS has the engine's."""
    rundir: Path | None
    """Folder in which all gRPC addresses are unix sockets; None: ``base_port``."""
    base_port: int
    """The job service's TCP port on 127.0.0.1; the switches have those after it."""
    rdma: bool
    """Whether all hosts have a NIC for RDMA."""


def parse_planes(text: str, *, rate: str | None = None, **options: Any) -> list[Fabric]:
    """One fabric for each plane that ``text`` asks for, alike but for their rates.  Raises FabricError.

    rate     rate of all links; or one for each plane, separated by commas
    options  other `FabricOptions`
    """
    kind, _, form = text.partition(",")
    count = PLANES.get(kind, 1)
    rates = [rate] if rate is None else [*rate.split(",")]
    if len(rates) not in (1, count):
        raise FabricError(f"rate {rate!r}: expected one for all planes, or {count} with commas")
    rates *= count // len(rates)
    return [parse(form if kind in PLANES else text, rate=rate, **options) for rate in rates]


def parse(text: str, **options: Unpack[FabricOptions]) -> Fabric:
    """The fabric that a text such as ``leafspine,2,2,8`` describes.  Raises FabricError."""
    kind, *words = text.split(",")
    form = FORMS.get(kind)
    if form is None or len(words) != form.count(",") or not all(word.isdecimal() for word in words):
        raise FabricError(f"unknown topology {text!r}: expected {' or '.join(FORMS.values())}, as leafspine,2,2,8")
    numbers = [int(word) for word in words]
    if kind == "leafspine":
        leaves, spines, hosts = numbers
        return leafspine(leaves, spines, hosts, **options)
    pods, leaves, aggs, spines, hosts = numbers
    return threetier(pods, leaves, aggs, spines, hosts, **options)


def leafspine(
    leaves: int, spines: int, hosts: int, *, name: str | None = None, **options: Unpack[FabricOptions]
) -> Fabric:
    """Every leaf linked to every spine, and the hosts spread evenly over the leaves, in order.  Raises FabricError.

    Names are leaf1.., spine1.., h1..; a leaf's ports are its hosts, 1.., then its uplinks; port l of a spine leads to
    leaf l.  Host h of leaf l is 10.0.l.h.
    """
    if leaves < 1 or hosts < 1 or spines < 0:
        raise FabricError(f"leafspine: expected at least 1 leaf, 0 spines and 1 host, got {leaves}, {spines}, {hosts}")
    if leaves > 1 and spines == 0:
        raise FabricError(f"leafspine: {leaves} leaves need at least 1 spine to meet, got 0")
    per_leaf = spread(hosts, leaves)
    if max(per_leaf) > 254 or max(per_leaf) + spines > MAX_PORT or leaves > MAX_PORT:
        raise FabricError(f"leafspine: {max(per_leaf)} hosts on a leaf with {spines} uplinks, and {leaves} leaves on a "
                          f"spine, exceed 254 hosts a leaf or {MAX_PORT} ports a switch")
    uppers: list[tuple[str, Role]] = [(f"spine{i + 1}", "spine") for i in range(spines)]
    cables = [(f"leaf{leaf + 1}", spine) for leaf in range(leaves) for spine, _ in uppers]
    return assemble(name or f"leafspine-{leaves}-{spines}-{hosts}", per_leaf, uppers, cables, **options)


def threetier(pods: int, leaves: int, aggs: int, spines: int, hosts: int, **options: Unpack[FabricOptions]) -> Fabric:
    """Pods of ``leaves`` leaves and ``aggs`` aggregation switches each under ``spines`` spines, with ``hosts`` spread
    over all leaves.

    Raises FabricError for numbers that do not fit: each spine is linked to one aggregation switch of a pod, so there
    are as many spines as aggregation switches in a pod, or a multiple.
    """
    if min(pods, leaves, aggs, hosts) < 1 or spines < aggs or spines % aggs:
        raise FabricError("threetier: expected at least 1 pod, leaf, agg and host, and as many spines as aggs in a "
                          f"pod, or a multiple; got {pods}, {leaves}, {aggs}, {spines}, {hosts}")
    uppers: list[tuple[str, Role]] = [(f"agg{i + 1}", "agg") for i in range(pods * aggs)]
    uppers += [(f"spine{i + 1}", "spine") for i in range(spines)]
    cables = [(f"leaf{pod * leaves + leaf + 1}", f"agg{pod * aggs + agg + 1}")
              for pod in range(pods) for leaf in range(leaves) for agg in range(aggs)]
    cables += [(f"agg{pod * aggs + spine % aggs + 1}", f"spine{spine + 1}")
               for pod in range(pods) for spine in range(spines)]
    return assemble(f"threetier-{pods}-{leaves}-{aggs}-{spines}-{hosts}", spread(hosts, pods * leaves), uppers, cables,
                    **options)


def spread(hosts: int, leaves: int) -> list[int]:
    """Number of hosts on each leaf: equal, or one more on the first leaves."""
    return [hosts // leaves + (leaf < hosts % leaves) for leaf in range(leaves)]


def assemble(
    name: str,
    per_leaf: Sequence[int],
    uppers: Sequence[tuple[str, Role]],
    cables: Iterable[tuple[str, str]],
    *,
    rate: str | None = None,
    seed: int = 0,
    engine: Engine = "softswitch",
    path_mtu: int | None = None,
    rundir: Path | None = None,
    base_port: int = 50050,
    rdma: bool = False,
    **faults: Unpack[Faults],
) -> Fabric:
    """A fabric of leaves with hosts, switches above them, and cables between switches.

    per_leaf  number of hosts on each leaf
    uppers    names and roles of the switches above the leaves
    cables    (lower switch, upper switch) by name
    rate ...  see `FabricOptions`
    A switch's ports count up from 1, hosts first, in the order of the cables.  Raises FabricError.
    """

    def grpc(node: str, number: int) -> str:
        return f"unix:{rundir / node}.sock" if rundir else f"127.0.0.1:{base_port + number}"

    inside = faults.copy()
    inside.pop("corrupt", None)
    switches: list[Switch] = []
    hosts: list[Host] = []
    links: list[Link] = []
    roles: list[tuple[str, Role]] = [(f"leaf{i + 1}", "leaf") for i in range(len(per_leaf))]
    for n, (switch, role) in enumerate([*roles, *uppers], 1):
        address = f"10.255.{n >> 8}.{n & 255}"
        switches.append(Switch(switch, role, n, grpc(switch, n), address, _mac_of(address)))
    ports = {switch.name: count(1) for switch in switches}
    above: dict[str, list[str]] = {switch.name: [] for switch in switches}
    for lower, upper in cables:
        above[lower].append(upper)
    for leaf, attached in enumerate(per_leaf, 1):
        for h in range(1, attached + 1):
            address = f"10.{leaf >> 8}.{leaf & 255}.{h}"
            hosts.append(Host(f"h{len(hosts) + 1}", address, _mac_of(address), rdma))
            links.append(Link(f"leaf{leaf}:{next(ports[f'leaf{leaf}'])}", f"{hosts[-1].name}:0", rate, **faults))
        for upper in above.pop(f"leaf{leaf}"):
            links.append(Link(f"leaf{leaf}:{next(ports[f'leaf{leaf}'])}", f"{upper}:{next(ports[upper])}", rate,
                              **inside))
    for lower, uppers_ in above.items():
        links += [Link(f"{lower}:{next(ports[lower])}", f"{upper}:{next(ports[upper])}", rate, **inside)
                  for upper in uppers_]
    path_mtu = PATH_MTUS[engine] if path_mtu is None else path_mtu
    fabric = Fabric(name, engine, grpc("controller", 0), path_mtu, seed=seed, switches=tuple(switches),
                    hosts=tuple(hosts), links=tuple(links))
    validate(fabric)
    return fabric


def _mac_of(address: str) -> str:
    """A locally administered MAC address whose last four bytes are the IPv4 address."""
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)
