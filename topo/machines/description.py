# SPDX-License-Identifier: Apache-2.0
"""Each machine's part of a fabric, as data that can be sent: nodes, and the cables to other machines.

A cable between machines is a VXLAN interface (RFC 7348) at either end, with a network identifier (VNI) of its own and
one unicast remote.  A cable inside a machine is a veth pair, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Final

import msgspec

from netfold.fabric.graph import Fabric, FabricError
from netfold.fabric.placement.machine_list import ListedMachine
from netfold.fabric.placement.placement import PlacementError, cables_between, place
from netfold.wire.roce import LINK_MTUS, PATH_MTU, Opcode, ip_packet_bytes

FIRST_VNI: Final = 4000
"""Default VNI of the first cable; a second fabric on the same machines needs others."""
MOST_VNI: Final = (1 << 24) - 1
VXLAN_PORT: Final = 4789
"""UDP port of VXLAN (RFC 7348)."""
VXLAN_BYTES: Final = 50
"""Bytes that VXLAN over IPv4 adds to an IP packet: outer IPv4, UDP and VXLAN headers, and the inner Ethernet header."""

PLAIN_MTU: Final = 1500
"""MTU of plain Ethernet."""

Text = Annotated[str, msgspec.Meta(max_length=255)]
Address = Annotated[str, msgspec.Meta(pattern=r"^\d{1,3}(\.\d{1,3}){3}$")]


class VxlanCable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a cable to another machine.

    switch, port  where it is plugged in here
    there         the other end, SWITCH:PORT
    """

    switch: Text
    port: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    there: Text
    machine: Text
    remote: Address
    vni: Annotated[int, msgspec.Meta(ge=1, le=MOST_VNI)]
    rate: Text | None = None


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine's part of a fabric.

    version     of NetFold, the same on all machines
    fabric      the whole fabric; its gRPC addresses are replaced by sockets in each machine's own folder
    nodes       names of the switches and hosts of this machine
    address     of this machine, to which the other ends of its cables send
    controller  True if the controller runs here
    mtu         of all links; the underlay's is at least VXLAN_BYTES more
    """

    version: Text
    machine: Text
    address: Address
    fabric: Fabric
    nodes: tuple[Text, ...]
    cables: tuple[VxlanCable, ...]
    controller: bool
    mtu: Annotated[int, msgspec.Meta(ge=576, le=65535)]

    def part(self) -> Fabric:
        """The fabric's nodes of this machine, and the links between them."""
        here = set(self.nodes)
        f = self.fabric
        return msgspec.structs.replace(
            f, switches=tuple(s for s in f.switches if s.name in here),
            hosts=tuple(h for h in f.hosts if h.name in here),
            links=tuple(link for link in f.links if all(end.node in here for end in link.ends)),
        )

    def reached(self) -> Fabric:
        """The same with the cables to other machines, whose ends here can be cut, silenced and captured."""
        here = set(self.nodes)
        links = tuple(link for link in self.fabric.links if any(end.node in here for end in link.ends))
        return msgspec.structs.replace(self.part(), links=links)

    @property
    def switches(self) -> list[str]:
        """The names of this machine's switches."""
        here = set(self.nodes)
        return [switch.name for switch in self.fabric.switches if switch.name in here]

    @property
    def hosts(self) -> list[str]:
        """The names of this machine's hosts."""
        here = set(self.nodes)
        return [host.name for host in self.fabric.hosts if host.name in here]


def describe(fabric: Fabric, machines: Sequence[ListedMachine], first_vni: int = FIRST_VNI,
             underlay: int | None = None) -> list[Description]:
    """Each machine's part, in their order.  Raises FabricError.

    first_vni  VNI of the cable of link 0; that of link n is n more
    underlay   as in `link_mtu`
    """
    if not 1 <= first_vni <= MOST_VNI - len(fabric.links):
        raise FabricError(f"VNIs from {first_vni}: expected 1 to {MOST_VNI - len(fabric.links)}, so that every link of "
                          f"{fabric.name} may have one")
    graph = fabric.graph()
    try:
        where = place(graph, {machine.name: machine.share for machine in machines})
    except PlacementError as error:
        raise FabricError(str(error)) from error
    addresses = {machine.name: machine.address for machine in machines}
    cables: dict[str, list[VxlanCable]] = {machine.name: [] for machine in machines}
    for number in cables_between(graph, where):
        link = fabric.links[number]
        for here, there in (link.ends, link.ends[::-1]):
            other = where[there.node]
            cables[where[here.node]].append(
                VxlanCable(here.node, here.port, str(there), other, addresses[other], first_vni + number, link.rate)
            )
    mtu = link_mtu(fabric.path_mtu, underlay) if len(machines) > 1 else LINK_MTUS[fabric.path_mtu]
    return [
        Description(metadata.version("netfold"), machine.name, machine.address, fabric,
                    tuple(node.name for node in fabric.nodes if where[node.name] == machine.name),
                    tuple(cables[machine.name]), controller=number == 0, mtu=mtu)
        for number, machine in enumerate(machines)
    ]


def link_mtu(path_mtu: int, underlay: int | None = None) -> int:
    """MTU of all links of a fabric with cables on an underlay of this MTU.  Raises FabricError where it is too small.

    underlay  MTU of the machines' interfaces; None: that of plain Ethernet, or of jumbo frames where the path MTU
              needs them
    """
    wanted = LINK_MTUS[path_mtu]
    if underlay is None:
        underlay = max(PLAIN_MTU, wanted + VXLAN_BYTES if path_mtu > PATH_MTU else PLAIN_MTU)
    fits = min(wanted, underlay - VXLAN_BYTES)
    if fits < needed_mtu(path_mtu):
        raise FabricError(f"an underlay of MTU {underlay} leaves {fits} bytes inside VXLAN, which takes {VXLAN_BYTES}: "
                          f"packets of path MTU {path_mtu} need {needed_mtu(path_mtu)}. {remedy(path_mtu)}")
    return fits


def remedy(path_mtu: int) -> str:
    """Advice on an underlay whose MTU is too small for a path MTU."""
    other = f", or --path-mtu {PATH_MTU}" if path_mtu > PATH_MTU else ""
    return f"Expected an MTU of {needed_mtu(path_mtu) + VXLAN_BYTES} at least between the machines{other}"


def needed_mtu(path_mtu: int) -> int:
    """The MTU that a link needs for data packets of a path MTU, in bytes from the IP header on."""
    return ip_packet_bytes(Opcode.WRITE_ONLY_IMMEDIATE, path_mtu)
