# SPDX-License-Identifier: Apache-2.0
"""RDMA devices as Linux lists them under /sys/class/infiniband: their GIDs and their counters.

A GID (global identifier) is the address of an RDMA port.  RoCE v2 has one for each address of the port's Ethernet
interface; that of an IPv4 address is ::ffff:a.b.c.d.  A queue pair sends from the GID whose place in the port's table
it is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Final

from netfold.host.errors import TransportError
from netfold.wire.roce import FOLD_NETWORK

SYSFS: Final = Path("/sys/class/infiniband")
ROCE_V2: Final = "RoCE v2"
MAPPED: Final = b"0000:0000:0000:0000:0000:ffff:"
"""The beginning of the text of a GID that stands for an IPv4 address."""
GID_BYTES: Final = 64
"""More than the text of a GID has."""
RETRANSMISSIONS: Final = ("completer_retry_err", "retry_exceeded_err", "packet_seq_err", "local_ack_timeout_err")
"""Counters of retransmissions, as rdma_rxe and mlx5 name them."""
ANSWERS: Final = (
    "sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
    "ack_deferred", "retry_rnr_exceeded_err", "out_of_sequence", "implied_nak_seq_err", "rnr_nak_retry_err",
    *RETRANSMISSIONS,
)
"""Counters of a port that show the fate of packets, as rdma_rxe and mlx5 name them."""


@dataclass(frozen=True)
class RoceGid:
    """A GID of the kind RoCE v2 that stands for an IPv4 address.

    index   its place in the port's table
    netdev  the Ethernet interface that has the address
    """

    address: str
    index: int
    netdev: str


@dataclass(frozen=True)
class RocePort:
    """A port of an RDMA device on Ethernet, and its GIDs by IPv4 address.

    hw_counters  the folder with the port's counters
    """

    device: str
    port: int
    gids: Mapping[str, RoceGid] = field(default_factory=dict)
    hw_counters: Path = SYSFS

    def __str__(self) -> str:
        gids = ", ".join(f"{gid.address} on {gid.netdev or '?'}" for gid in self.gids.values())
        return f"{self.device} port {self.port} ({gids or 'no IPv4 address'})"

    def counters(self) -> dict[str, int]:
        """The port's counters of packets that its driver offers; they count all queue pairs of the machine."""
        found = {}
        for name in ANSWERS:
            try:
                found[name] = int((self.hw_counters / name).read_text())
            except (OSError, ValueError):
                continue
        return found


def ports(root: Path = SYSFS) -> list[RocePort]:
    """All ports of RDMA devices on Ethernet, by the name of the device."""
    found = []
    for folder in sorted(root.glob("*/ports/*")):
        if _text(folder / "link_layer") == "Ethernet" and folder.name.isdigit():
            gids = {gid.address: gid for gid in _gids(folder)}
            found.append(RocePort(folder.parent.parent.name, int(folder.name), gids, folder / "hw_counters"))
    return found


def described(root: Path = SYSFS, interfaces: Path = Path("/sys/class/net")) -> str:
    """All ports, a line each: their IPv4 addresses, which of these are fold addresses, and the MTU of the interfaces.
    Raises TransportError if no port is usable for a rank."""
    lines, usable = [], False
    for port in ports(root):
        addresses = []
        for gid in port.gids.values():
            fold = " (fold address)" if IPv4Address(gid.address) in IPv4Network(FOLD_NETWORK) else ""
            usable = usable or not fold
            mtu = _text(interfaces / gid.netdev / "mtu") or "unknown"
            addresses.append(f"{gid.address}{fold} on {gid.netdev or '?'}, MTU {mtu}")
        lines.append(f"{port.device} port {port.port}: {'; '.join(addresses) or 'no IPv4 address'}")
    if not usable:
        raise TransportError("; ".join(lines) or f"{root} names no RDMA device on Ethernet")
    return "\n".join(lines)


def port_of(address: str, root: Path = SYSFS) -> RocePort:
    """The port that has this IPv4 address.  Raises TransportError if there is none."""
    known = ports(root)
    for port in known:
        if address in port.gids:
            return port
    if not known:
        raise TransportError(
            f"rail='verbs', address {address}: this machine has no RDMA device; an Ethernet interface gets one in "
            "software by `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev eth0` (package iproute2); "
            "rail='auto' needs none"
        )
    raise TransportError(
        f"rail='verbs': no RDMA device has a RoCE v2 GID for the address {address}; there are "
        f"{'; '.join(map(str, known))}; see docs/verbs.md"
    )


def fold_gid(port: RocePort, own: str, fold_address: str) -> RoceGid:
    """The GID of a port for its host's fold address.  Raises TransportError if it has none."""
    found = port.gids.get(fold_address)
    if found is None:
        netdev = port.gids[own].netdev or "DEVICE"
        raise TransportError(
            f"rail='verbs': this host's fold address {fold_address} is no address of {port.device}, whose interface is "
            f"{netdev}; give it to it: ip addr add {fold_address}/32 dev {netdev} (docs/verbs.md)"
        )
    return found


def _gids(port: Path) -> list[RoceGid]:
    """The GIDs of a port that stand for IPv4 addresses.  A table has up to 1,024 places, nearly all of them empty, and
    each place is a file: an empty one takes three system calls, and nothing else."""
    found = []
    table = os.open(port / "gids", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for index in sorted(os.listdir(table), key=int):
            try:
                place = os.open(index, os.O_RDONLY, dir_fd=table)
            except OSError:
                continue
            try:
                text = os.read(place, GID_BYTES)
            except OSError:
                continue
            finally:
                os.close(place)
            if text.startswith(MAPPED) and _text(port / "gid_attrs" / "types" / index) == ROCE_V2:
                address = IPv6Address(text.decode().strip()).ipv4_mapped
                found.append(RoceGid(str(address), int(index), _text(port / "gid_attrs" / "ndevs" / index)))
    finally:
        os.close(table)
    return found


def _text(file: Path) -> str:
    """The text of a file of the kernel; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
