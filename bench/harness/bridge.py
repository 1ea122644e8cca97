# SPDX-License-Identifier: Apache-2.0
"""Hosts on a plain kernel bridge with the links of a fabric: the best case for algorithms that do not fold.

Offloads stay on, so that TCP's super-packets cross the bridge whole.  Each link is shaped in both directions, like a
link of a fabric.
"""

from __future__ import annotations

from mininet.node import Node

from netfold.topo.network.wiring import execute, shaper
from netfold.topo.processes.lifecycle import Lifecycle
from netfold.topo.processes.ranks import Namespaces, in_namespaces
from netfold.wire.roce import LINK_MTUS, PATH_MTU

PREFIX = "10.254.0"
"""First three bytes of the hosts' addresses."""


class Bridge(Lifecycle):
    """A bridge with ``count`` hosts, each in a network namespace of its own.

    rate  of the links, in tc's units; None: unshaped
    mtu   of the links, in bytes
    """

    def __init__(self, count: int, rate: str | None, mtu: int = LINK_MTUS[PATH_MTU]) -> None:
        if not 1 <= count <= 250:
            raise ValueError(f"a bridge of {count} hosts: expected 1 to 250")
        self.addresses = [f"{PREFIX}.{number + 1}" for number in range(count)]
        self.interface = "eth0"
        """Name of the interface in every host."""
        self._rate = rate
        self._mtu = mtu
        self._nodes: list[Node] = []

    @property
    def enters(self) -> list[Namespaces]:
        """The hosts, as `ranks.start` takes them."""
        return [in_namespaces(node.pid) for node in self._nodes[1:]]

    def stop(self) -> None:
        """End the hosts; their namespaces and interfaces go with them."""
        for node in self._nodes:
            node.terminate()
        self._nodes.clear()

    def start(self) -> None:
        """Make the bridge, the hosts and the links.  Raises WiringError."""
        hub = Node("hub", inNamespace=True)
        self._nodes.append(hub)
        execute(hub, "ip link add hub type bridge mcast_snooping 0 && ip link set hub up", "making a bridge")
        for number, address in enumerate(self.addresses):
            host = Node(f"b{number}", inNamespace=True)
            self._nodes.append(host)
            port, name = f"port{number}", self.interface
            ours = shaper(port, self._rate) if self._rate else []
            execute(hub, "\n".join([
                f"ip link add {port} type veth peer name {name} netns {host.pid}",
                f"ip link set {port} mtu {self._mtu} master hub up",
                *ours,
            ]), f"wiring port {number} of the bridge")
            execute(host, "\n".join([
                "ip link set lo up",
                f"ip address add {address}/24 dev {name}",
                f"ip link set {name} mtu {self._mtu} up",
                *(shaper(name, self._rate) if self._rate else []),
            ]), f"configuring host {number} of the bridge")
