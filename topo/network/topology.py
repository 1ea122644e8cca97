# SPDX-License-Identifier: Apache-2.0
"""Fabrics as Mininet topologies."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Unpack

from mininet.topo import Topo

from netfold.controller.switch import credentials
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import FabricOptions, leafspine
from netfold.fabric.graph import Fabric
from netfold.rpc.certificates import Certificates
from netfold.topo.network.guests import GuestLink
from netfold.topo.network.rundir import socket_folder
from netfold.topo.network.switches import CLASSES
from netfold.topo.network.wiring import FabricHost, FabricLink, HostInterface
from netfold.topo.processes.failures import SwitchFailed
from netfold.wire.roce import LINK_MTUS


class FabricTopo(Topo):  # type: ignore[misc]
    """The Mininet topology of any `Fabric`, with its names, ports, addresses and rates.

    logs     folder for the switches' logs
    pcap     folder for captures of every switch port, or None
    offload  whether segmentation offloads stay on; None: on where the switch takes super-packets
    guests   names of hosts that are no namespaces: their leaves' ports are made by `GuestHosts.start`
    tls      what the switches' P4Runtime servers show and whom they trust, where they are at ``host:port``; what the
             controller shows is in the fabric (p4runtime_ca)
    """

    def build(
        self,
        fabric: Fabric,
        logs: Path | None = None,
        pcap: Path | None = None,
        offload: bool | None = None,
        network: str = "default",
        tls: Certificates | None = None,
        guests: Collection[str] = (),
        mtu: int | None = None,
    ) -> None:
        """Build the topology; Mininet calls this with the constructor's arguments.

        network  addresses that hosts reach by this fabric
        mtu      of all links; None: what LINK_MTUS has for the fabric's path MTU
        """
        self.fabric = fabric
        self.guest_links: list[GuestLink] = []
        offload = CLASSES[fabric.engine].offload if offload is None else offload
        gateways: dict[str, tuple[int, str]] = {}
        for link in fabric.links:
            for here, there in (link.ends, link.ends[::-1]):
                gateways[here.node] = here.port, fabric.node(there.node).mac
        for switch in fabric.switches:
            log = None if logs is None else str(logs / f"{switch.name}.log")
            self.addSwitch(switch.name, grpc=switch.grpc, device_id=switch.device_id, log=log, pcap=pcap, tls=tls,
                           trust=None if tls is None else credentials.of(fabric, switch))
        for host in fabric.hosts:
            wired = host.name in gateways and host.name not in guests
            interfaces = [HostInterface(host.address, *gateways[host.name], network)] if wired else []
            jobs = [fabric.jobs]
            if host.name in self.hosts():  # it is on another plane already
                known = self.nodeInfo(host.name)
                interfaces, jobs = [*known["interfaces"], *interfaces], [*known["jobs"], *jobs]
            self.addHost(host.name, cls=FabricHost, interfaces=interfaces, jobs=jobs)
        # the interfaces of switches keep Mininet's random addresses, so that the kernel takes no packet for its own
        macs = {host.name: host.mac for host in fabric.hosts}
        for link in fabric.links:
            a, b = link.ends
            params = {"rate": link.rate, "offload": offload, "mtu": mtu or LINK_MTUS[fabric.path_mtu]}
            if guest := next((end for end in (a, b) if end.node in guests), None):
                leaf, host = b if guest is a else a, fabric.host(guest.node)
                self.guest_links.append(GuestLink(
                    host.name, guest.port, host.mac, host.address, fabric.fold_address(host), leaf.node,
                    leaf.port, fabric.node(leaf.node).mac, params,
                ))
                continue
            addresses = {f"addr{i}": macs[end.node] for i, end in enumerate((a, b), 1) if end.node in macs}
            self.addLink(
                a.node, b.node, port1=a.port, port2=b.port, **addresses, cls=FabricLink, **params,
            )


class LeafSpine(FabricTopo):
    """The topology ``leafspine(leaves, spines, hosts, ...)``; ``save`` names a file for the fabric's TOML.

    All gRPC addresses are unix sockets in ``rundir`` (default: `socket_folder`), which hosts reach too; with
    ``base_port`` they are TCP ports of loopback, which every user of the machine reaches.
    """

    def build(  # type: ignore[override]
        self,
        leaves: int = 2,
        spines: int = 2,
        hosts: int = 8,
        save: str | None = None,
        logs: Path | None = None,
        pcap: Path | None = None,
        offload: bool | None = None,
        **options: Unpack[FabricOptions],
    ) -> None:
        """Build the topology; Mininet calls this with the constructor's arguments."""
        if "base_port" not in options:
            try:
                options["rundir"] = Path(options.get("rundir") or socket_folder()).absolute()
            except OSError as error:
                raise SwitchFailed(f"sockets: {error}") from error
        fabric = leafspine(leaves, spines, hosts, **options)
        if save is not None:
            fabric_file.save(fabric, Path(save))
        super().build(fabric, logs, pcap, offload)
