# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: switches, hosts and links, in a TOML file or generated.

    [fabric]                          [[switch]]                        [[host]]
    name = "lab"                      name = "leaf1"                    name = "h1"
    engine = "softswitch"             role = "leaf"                     address = "10.0.1.1"
    jobs = "unix:/run/netfold.sock"   device_id = 1                     mac = "02:00:0a:00:01:01"
                                      grpc = "127.0.0.1:50051"
    [[link]]                          address = "10.255.0.1"
    a = "leaf1:1"                     mac = "02:00:0a:ff:00:01"
    b = "h1:0"
    rate = "1gbit"                    # optional, in tc's units
    loss = 0.01                       # optional, share of packets lost each way; duplicate, reorder, corrupt likewise

Optional in [fabric]: token or token_file, which ranks and operators must then know; certificate and key, PEM files,
for TLS; all of them relative to the fabric file.

A file is checked as a whole before anything is done with it: `FabricError` names the field, what was expected and
what was found.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec
import networkx as nx

from netfold.wire import roce

Engine = Literal["softswitch", "bmv2"]
Role = Literal["leaf", "agg", "spine"]
"""An agg stands between leaves and spines, in fabrics of three tiers; trees have their roots at spines."""

CPU_PORT: Final = 510
"""CPU_PORT of p4src/sizes.p4; ports of links lie below it."""
MAX_PORT: Final = CPU_PORT - 1
MAX_SOCKET_PATH: Final = 107
"""sun_path of unix(7), less its end mark."""

Node = TypeVar("Node", "Switch", "Host", "Switch | Host")

_RATE_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}


class FabricError(ValueError):
    """A fabric that cannot be: says which field, what was expected and what was found."""


class End(NamedTuple):
    """One end of a link."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A P4Runtime target."""

    name: str
    role: Role
    device_id: int
    grpc: str
    """P4Runtime address, ``host:port`` or ``unix:/path``."""
    address: str
    """IPv4 address of this switch as an end point of RoCE packets between switches."""
    mac: str


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training node with one link into the fabric."""

    name: str
    address: str
    mac: str


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A full-duplex cable between ``node:port`` and ``node:port``."""

    a: str
    b: str
    rate: str | None = None
    """Rate of each direction in tc's units, as ``1gbit``; None: as fast as it goes."""
    loss: float = 0.0
    """Share of packets lost in each direction, 0..1."""
    duplicate: float = 0.0
    """Share that comes twice."""
    reorder: float = 0.0
    """Share that others overtake."""
    corrupt: float = 0.0
    """Share whose payload is changed on the way from a host to its switch."""

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends, parsed."""
        return _end(self.a), _end(self.b)


class Fabric(msgspec.Struct, frozen=True):
    """Everything the controller must know beforehand.  Build it with `load`, `loads` or `leafspine`: they check it."""

    name: str
    engine: Engine
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    jobs: str
    """gRPC address of the controller's job service, ``host:port`` or ``unix:/path``."""
    path_mtu: int = roce.PATH_MTU
    seed: int = 0
    """Of the faults on purpose: the same seed hits the same packets."""
    probe: float = 0.5
    """Seconds between probes of every link between switches; 0: links are not probed."""
    misses: int = 5
    """Probes lost in a row before a link is down; more where it loses packets on purpose."""
    steady: float = 2.0
    """Seconds that a switch or link must have been back before running jobs move to it again (steadiness)."""
    token: str | None = None
    """What ranks and operators must say; or it stands in ``token_file``."""
    token_file: str | None = None
    certificate: str | None = None
    """PEM file of the job service's certificate, and ``key`` of its private key: TLS where there are both."""
    key: str | None = None

    @property
    def nodes(self) -> tuple[Switch | Host, ...]:
        """Switches, then hosts."""
        return self.switches + self.hosts

    def switch(self, name: str) -> Switch:
        """The switch of that name; KeyError otherwise."""
        return _named(self.switches, name)

    def host(self, name: str) -> Host:
        """The host of that name; KeyError otherwise."""
        return _named(self.hosts, name)

    def node(self, name: str) -> Switch | Host:
        """The switch or host of that name; KeyError otherwise."""
        return _named(self.nodes, name)

    def host_at(self, address: str) -> Host | None:
        """The host with this IPv4 address."""
        return next((h for h in self.hosts if h.address == address), None)

    def leaf_of(self) -> dict[str, str]:
        """Every host's switch."""
        switches = {switch.name for switch in self.switches}
        ends = [pair for link in self.links for pair in (link.ends, link.ends[::-1])]
        return {host.node: leaf.node for host, leaf in ends if host.node not in switches}

    def graph(self) -> nx.MultiGraph[str]:
        """A view for planners.

        Nodes carry ``kind`` ("switch" or "host"), ``address`` and ``mac``, switches ``role`` too; edges, whose key is
        the link's number, carry ``ports`` (node name -> port), ``rate`` (bit/s or None) and ``loss``.
        """
        graph: nx.MultiGraph[str] = nx.MultiGraph(name=self.name)
        for s in self.switches:
            graph.add_node(s.name, kind="switch", role=s.role, address=s.address, mac=s.mac)
        for h in self.hosts:
            graph.add_node(h.name, kind="host", address=h.address, mac=h.mac)
        for number, link in enumerate(self.links):
            a, b = link.ends
            rate = None if link.rate is None else bits_per_second(link.rate)
            graph.add_edge(a.node, b.node, number, ports={a.node: a.port, b.node: b.port}, rate=rate, loss=link.loss)
        return graph

    def secret(self) -> str:
        """The token; empty where there is none.  Raises FabricError where its file has none."""
        if self.token_file is None:
            return self.token or ""
        secret = _read("fabric.token_file", self.token_file).decode(errors="replace").strip()
        if not secret:
            raise FabricError(f"fabric.token_file: {self.token_file} is empty: expected the token in it")
        return secret

    def tls(self) -> tuple[bytes, bytes] | None:
        """Private key and certificate chain, PEM; None where the job service is not TLS.  Raises FabricError."""
        if self.certificate is None or self.key is None:
            return None
        return _read("fabric.key", self.key), _read("fabric.certificate", self.certificate)

    def dumps(self) -> str:
        """The fabric as TOML text, which `loads` reads back equal."""
        head = {name: getattr(self, name) for name in _Settings.__struct_fields__}
        parts = [_table("[fabric]", head)]
        for title, things in (("[[switch]]", self.switches), ("[[host]]", self.hosts), ("[[link]]", self.links)):
            parts += [_table(title, msgspec.structs.asdict(thing)) for thing in things]
        return "\n".join(parts)

    def save(self, path: Path) -> None:
        """Write the TOML file."""
        path.write_text(self.dumps())


def load(path: Path) -> Fabric:
    """Read and check a fabric file.  Raises FabricError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FabricError(f"cannot read the fabric file {path}: {error}") from error
    fabric = loads(text, str(path))
    # files that it names stand beside it
    beside = {name: str(path.parent / value) for name in ("token_file", "certificate", "key")
              if (value := getattr(fabric, name)) is not None}
    return msgspec.structs.replace(fabric, **beside)


def loads(text: str, where: str = "fabric") -> Fabric:
    """Parse and check TOML text; ``where`` names it in errors.  Raises FabricError."""
    try:
        document = msgspec.convert(tomllib.loads(text), _Document)
    except tomllib.TOMLDecodeError as error:
        raise FabricError(f"{where} is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise FabricError(f"{where}: {error}") from error
    fabric = Fabric(
        **msgspec.structs.asdict(document.fabric),
        switches=tuple(document.switch),
        hosts=tuple(document.host),
        links=tuple(document.link),
    )
    try:
        validate(fabric)
    except FabricError as error:
        raise FabricError(f"{where}: {error}") from error
    return fabric


def validate(fabric: Fabric) -> None:
    """Raise FabricError where the fabric contradicts itself or the switch program."""
    if fabric.path_mtu not in roce.PATH_MTUS:
        raise FabricError(f"fabric.path_mtu: expected {' or '.join(map(str, roce.PATH_MTUS))}, for which there is a "
                          f"switch program, got {fabric.path_mtu}")
    if not 0 <= fabric.seed < 2**32:
        raise FabricError(f"fabric.seed: expected 0..2^32-1, got {fabric.seed}")
    _grpc_address("fabric.jobs", fabric.jobs)
    if fabric.probe != 0 and not 0.01 <= fabric.probe <= 60:
        raise FabricError(f"fabric.probe: expected 0 (off) or 0.01..60 seconds, got {fabric.probe}")
    if not 2 <= fabric.misses <= 1000:
        raise FabricError(f"fabric.misses: expected 2..1000 probes, got {fabric.misses}")
    if not 0 <= fabric.steady <= 3600:
        raise FabricError(f"fabric.steady: expected 0..3600 seconds, got {fabric.steady}")
    if fabric.token is not None and fabric.token_file is not None:
        raise FabricError("fabric.token: expected either a token or a token_file, got both")
    if fabric.token == "":
        raise FabricError("fabric.token: expected at least one character, got none; leave it out to have no token")
    if (fabric.certificate is None) != (fabric.key is None):
        given, other = ("certificate", "key") if fabric.key is None else ("key", "certificate")
        raise FabricError(f"fabric.{other}: TLS needs both certificate and key, got only fabric.{given}")
    if fabric.certificate is not None and fabric.jobs.startswith("unix:"):
        raise FabricError(f"fabric.certificate: TLS goes with fabric.jobs = \"host:port\", got {fabric.jobs}; a unix "
                          "socket is guarded by the permissions of its folder")
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
        once("address", _ipv4(f"{path}.address", node.address), f"{path}.address")
        once("mac", _mac(f"{path}.mac", node.mac), f"{path}.mac")
        if isinstance(node, Switch):
            if not 0 <= node.device_id < 2**64:
                raise FabricError(f"{path}.device_id: expected 0..2^64-1, got {node.device_id}")
            _grpc_address(f"{path}.grpc", node.grpc)
            device = (node.grpc, node.device_id)
            if device in devices:
                raise FabricError(f"{path}: {node.name} and {devices[device]} share {node.grpc} and device_id "
                                  f"{node.device_id}; give one of them another")
            devices[device] = node.name

    switches, hosts = {s.name for s in fabric.switches}, {h.name for h in fabric.hosts}
    used: dict[End, str] = {}
    linked: set[str] = set()
    for i, link in enumerate(fabric.links):
        where = f"link[{i}]"
        try:
            ends = link.ends
        except FabricError as error:
            raise FabricError(f"{where}: {error}") from error
        for end in ends:
            if end.node not in switches | hosts:
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
        faults = {name: getattr(link, name) for name in ("loss", "duplicate", "reorder", "corrupt")}
        for name, share in faults.items():
            if not 0.0 <= share <= 1.0:
                raise FabricError(f"{where}.{name}: expected a share of 0..1, got {share}")
        if sum(faults.values()) > 1.0:
            raise FabricError(f"{where}: a packet has one fault at most, so that shares add up to 1 or less; got "
                              f"{faults}")
        if link.corrupt and not {end.node for end in ends} & hosts:
            raise FabricError(f"{where}.corrupt: expected a link to a host, whose first switch checks the ICRC; "
                              f"{link.a} and {link.b} are switches")
        if link.rate is not None:
            try:
                bits_per_second(link.rate)
            except FabricError as error:
                raise FabricError(f"{where}.rate: {error}") from error
    for name in sorted((hosts | switches) - linked):
        if name in hosts or len(fabric.switches) > 1:
            raise FabricError(f"{name} has no [[link]]")
    if not nx.is_connected(fabric.graph()):
        raise FabricError("link: the fabric falls apart into pieces that no link connects")


def bits_per_second(rate: str) -> int:
    """A rate in tc's units (``100mbit``, ``2.5gbit``) in bit/s.  Raises FabricError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit|tbit)", rate)
    if not match or float(match[1]) == 0:
        raise FabricError(f"expected a rate such as 100mbit, 1gbit or 2.5gbit, got {rate!r}")
    return round(float(match[1]) * _RATE_UNITS[match[2]])


class Faults(TypedDict, total=False):
    """What every link of a generated fabric does to packets, `corrupt` only those of hosts; see `Link`."""

    loss: float
    duplicate: float
    reorder: float
    corrupt: float


def leafspine(
    leaves: int,
    spines: int,
    hosts: int,
    *,
    rate: str | None = None,
    seed: int = 0,
    engine: Engine = "softswitch",
    name: str | None = None,
    rundir: Path | None = None,
    base_port: int = 50050,
    path_mtu: int = roce.PATH_MTU,
    **faults: Unpack[Faults],
) -> Fabric:
    """Every leaf linked to every spine, and the hosts spread evenly over the leaves, in order.

    Names are leaf1.., spine1.., h1..; a leaf's ports are its hosts, 1.., then its uplinks; port l of a spine leads to
    leaf l.  Host h of leaf l is 10.0.l.h.  With ``rundir`` all gRPC addresses are unix sockets in it; without, the
    job service listens on ``base_port`` of 127.0.0.1 and the switches on the ports after it.
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
    return assemble(name or f"leafspine-{leaves}-{spines}-{hosts}", per_leaf, uppers, cables, rate=rate, seed=seed,
                    engine=engine, rundir=rundir, base_port=base_port, faults=faults, path_mtu=path_mtu)


def spread(hosts: int, leaves: int) -> list[int]:
    """How many hosts each leaf has: as even as can be, the first ones more."""
    return [hosts // leaves + (leaf < hosts % leaves) for leaf in range(leaves)]


def assemble(
    name: str,
    per_leaf: Sequence[int],
    uppers: Sequence[tuple[str, Role]],
    cables: Iterable[tuple[str, str]],
    *,
    rate: str | None,
    seed: int,
    engine: Engine,
    rundir: Path | None,
    base_port: int,
    faults: Faults,
    path_mtu: int = roce.PATH_MTU,
) -> Fabric:
    """A generated fabric: leaves with so many hosts each, switches above them, and cables (lower, upper) between
    switches.  A switch's ports count up from 1, hosts first, in the order of the cables.  Raises FabricError."""

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
            hosts.append(Host(f"h{len(hosts) + 1}", address, _mac_of(address)))
            links.append(Link(f"leaf{leaf}:{next(ports[f'leaf{leaf}'])}", f"{hosts[-1].name}:0", rate, **faults))
        for upper in above.pop(f"leaf{leaf}"):
            links.append(Link(f"leaf{leaf}:{next(ports[f'leaf{leaf}'])}", f"{upper}:{next(ports[upper])}", rate,
                              **inside))
    for lower, uppers_ in above.items():
        links += [Link(f"{lower}:{next(ports[lower])}", f"{upper}:{next(ports[upper])}", rate, **inside)
                  for upper in uppers_]
    fabric = Fabric(name, engine, tuple(switches), tuple(hosts), tuple(links), jobs=grpc("controller", 0), seed=seed,
                    path_mtu=path_mtu)
    validate(fabric)
    return fabric


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    engine: Engine
    jobs: str
    path_mtu: int = roce.PATH_MTU
    seed: int = 0
    probe: float = 0.5
    misses: int = 5
    steady: float = 2.0
    token: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The file's layout."""

    fabric: _Settings
    switch: list[Switch]
    host: list[Host] = []
    link: list[Link] = []


def _table(title: str, values: dict[str, object]) -> str:
    # JSON's strings and numbers are TOML's as well
    given = {key: value for key, value in values.items() if value is not None}
    return title + "\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items())


def _read(where: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise FabricError(f"{where}: cannot read {file}: {error.strerror}") from error


def _named(nodes: Iterable[Node], name: str) -> Node:
    for node in nodes:
        if node.name == name:
            return node
    raise KeyError(f"the fabric has no {name}")


def _end(text: str) -> End:
    node, _, port = text.rpartition(":")
    if not node or not port.isdecimal():
        raise FabricError(f"expected NODE:PORT, got {text!r}")
    return End(node, int(port))


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


def _mac_of(address: str) -> str:
    """A locally administered MAC that shows the IPv4 address."""
    return "02:00:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


def _grpc_address(where: str, text: str) -> None:
    if re.fullmatch(r"unix:/.+", text):
        if len(text.removeprefix("unix:").encode()) > MAX_SOCKET_PATH:
            raise FabricError(f"{where}: expected a socket path of at most {MAX_SOCKET_PATH} bytes, as the kernel has "
                              f"it, got {text!r}; use a shorter folder")
        return
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise FabricError(f"{where}: expected HOST:PORT or unix:/PATH, got {text!r}")
