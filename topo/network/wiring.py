# SPDX-License-Identifier: Apache-2.0
"""Links and hosts of a fabric for Mininet: shaped veth pairs, and hosts that only know their gateway.

Every host has a /32 address and a default route to 169.254.1.1, whose permanent MAC address is that of its leaf: a
routed fabric without broadcasts.  IPv6 is off, so that the kernel sends no packets of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mininet.link import Intf, Link
from mininet.node import Host, Node

from netfold.fabric.graph import bits_per_second
from netfold.topo.network import host_processes
from netfold.topo.network.shells import WatchedShell
from netfold.topo.processes.failures import WiringError
from netfold.wire.roce import LINK_MTUS, PATH_MTU

GATEWAY: Final = "169.254.1.1"
QUEUE_BYTES: Final = 4_000_000
"""Least room of the queue behind a link's shaper."""
HTB_QUANTUM: Final = 60_000
"""Quantum of HTB in bytes: it warns of larger values, and a super-packet has up to 64 KiB."""
NAME_LIMIT: Final = 15
"""Most characters of an interface's name."""


def execute(node: Node, script: str, what: str) -> str:
    """Run a shell script in a node's namespaces up to its first failure and return its output.  Raises WiringError."""
    attach = ["mnexec", "-a", str(node.pid)] if node.inNamespace else []
    done = subprocess.run(
        [*attach, "sh", "-exc", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise WiringError(f"{what} failed with status {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


class FabricIntf(Intf):  # type: ignore[misc]
    """One end of a link.

    rate     of what leaves by this interface, in tc's units; None: unshaped
    offload  whether segmentation and checksum offloads stay on, so that super-packets travel whole
    """

    def config(
        self, rate: str | None = None, offload: bool = True, mtu: int = LINK_MTUS[PATH_MTU], **others: Any
    ) -> dict[str, Any]:
        """Bring the interface up.  Raises WiringError, ValueError for Mininet's delay, loss and the like."""
        unknown = sorted(set(others) - {"ip", "ifconfig", "up"})
        if unknown:
            raise ValueError(
                f"{self.name}: {', '.join(unknown)}: a fabric's link knows rate, offload and mtu. Losses are made by "
                "the switches (link.loss in the fabric, --loss): this is no netem"
            )
        ipv6 = f"/proc/sys/net/ipv6/conf/{self.name}/disable_ipv6"
        script = [f"if [ -e {ipv6} ]; then echo 1 > {ipv6}; fi"]
        if not offload:
            script.append(f"ethtool -K {self.name} rx off tx off sg off tso off gso off gro off >&2")
        script.append(f"ip link set dev {self.name} mtu {mtu} up")
        if rate is not None:
            script += shaper(self.name, rate)
        execute(self.node, "\n".join(script), f"setting up {self.name}")
        return {}


def shaper(name: str, rate: str) -> list[str]:
    """The tc commands that shape what leaves an interface to ``rate``.

    HTB, whose burst carries two super-packets (and 2 ms of a fast link, since the kernel's timer serves it in steps),
    before a plain queue of 50 ms, at least 4 MB: the hosts' windows bound what is in flight, not a drop here.
    """
    bits = bits_per_second(rate)
    burst = max(128 * 1024, bits // 8 // 500)
    return [
        f"tc qdisc add dev {name} root handle 1: htb default 1",
        f"tc class add dev {name} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit burst {burst} cburst {burst} "
        f"quantum {HTB_QUANTUM}",
        f"tc qdisc add dev {name} parent 1:1 handle 10: bfifo limit {queue_bytes(rate)}",
    ]


def queue_bytes(rate: str) -> int:
    """Room of the queue behind the shaper of a link with this rate."""
    return max(QUEUE_BYTES, bits_per_second(rate) // 8 // 20)


class FabricLink(Link):  # type: ignore[misc]
    """A veth pair with a `FabricIntf` at both ends."""

    def __init__(self, node1: Node, node2: Node, **params: Any) -> None:
        for node, port in ((node1, params.get("port1")), (node2, params.get("port2"))):
            name = f"{node.name}-eth{port}"
            if len(name) > NAME_LIMIT:
                raise WiringError(
                    f"interface name {name}: Linux takes {NAME_LIMIT} characters, got {len(name)}; give {node.name} "
                    "a shorter name"
                )
        params["intf"] = FabricIntf
        super().__init__(node1, node2, **params)


@dataclass(frozen=True)
class HostInterface:
    """The interface by which a host is on a fabric."""

    address: str
    port: int
    gateway_mac: str
    """MAC address of the leaf at the other end."""
    network: str = "default"
    """Addresses that are reached by this interface."""


class FabricHost(WatchedShell, Host):  # type: ignore[misc]
    """A host with an address, a link and a gateway for every fabric that it is on; most are on one.

    jobs  addresses of these fabrics' job services
    """

    def __init__(
        self, name: str, interfaces: Sequence[HostInterface] = (), jobs: Sequence[str] = (), **params: Any
    ) -> None:
        self.interfaces, self.jobs = interfaces, jobs
        super().__init__(name, **params)

    def startShell(self, mnopts: str | None = None) -> None:
        """Start its process, and record it for `netfold run --fabric`.  Raises WiringError."""
        super().startShell(mnopts)
        try:
            host_processes.record(self.name, self.pid, self.jobs)
        except OSError as error:
            raise WiringError(f"host {self.name}: its process cannot be recorded: {error}") from error

    def terminate(self) -> None:
        """End its process."""
        host_processes.forget(self.pid)
        super().terminate()

    def defaultIntf(self) -> Intf | None:
        """Its first interface; None, without Mininet's warning, where it has none, since it is a guest (guests.py)."""
        return super().defaultIntf() if self.interfaces else None

    def config(self, **_: Any) -> dict[str, Any]:
        """Configure the host's addresses and routes.  Raises WiringError."""
        ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
        script = [f"if [ -e {ipv6} ]; then echo 1 > {ipv6}; fi", "ip link set dev lo up"]
        for interface in self.interfaces:
            intf = self.intfs[interface.port]
            script += [
                f"ip address add {interface.address}/32 dev {intf.name}",
                f"ip route add {interface.network} via {GATEWAY} dev {intf.name} onlink src {interface.address}",
                f"ip neigh replace {GATEWAY} lladdr {interface.gateway_mac} dev {intf.name} nud permanent",
            ]
            intf.ip, intf.prefixLen = interface.address, 32
        execute(self, "\n".join(script), f"configuring host {self.name}")
        return {}
