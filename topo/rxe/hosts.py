# SPDX-License-Identifier: Apache-2.0
"""Virtual machines as hosts of a fabric: each on a tap where its leaf's port is, without a bridge between.

What a guest has on its interface is what a host in a namespace has (wiring.py): its address with a /32, a gateway whose
MAC address is known, no IPv6, the link's MTU and rate.  Beside that it has the host's fold address, where the fabric
gives it one, and an RDMA device, rxe0.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Collection, Sequence

from netfold.topo.network.guests import GuestLink, Surroundings
from netfold.topo.network.wiring import GATEWAY, FabricIntf, shaper
from netfold.topo.processes.failures import WiringError
from netfold.topo.rxe import counts, engines
from netfold.topo.rxe.machine import MEMORY, Machine, Nic, System

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000


class Guests:
    """The virtual machines of one fabric, for `Network`.

    names   which hosts these are
    memory  MiB of each
    """

    def __init__(self, names: Collection[str], memory: int = MEMORY) -> None:
        self._names, self._memory = tuple(names), memory
        self._links: Sequence[GuestLink] = ()
        self._taps: list[int] = []
        self._engines: dict[str, str] = {}
        self.machines: dict[str, Machine] = {}
        self.boot_seconds: dict[str, float] = {}
        """Seconds from the start of each machine until it was usable."""

    @property
    def names(self) -> Collection[str]:
        """Which hosts these are."""
        return self._names

    def start(self, around: Surroundings) -> None:
        """Make the taps and start the machines; `wait_ready` waits until they can be used.

        Raises PackagesMissing, EnginesFailed, WiringError, OSError.
        """
        system = System.prepare(around.folder, share=around.share, sockets=around.sockets)
        engines.compile_for_guests(system.userland)
        self._engines = engines.environment(system.userland)
        self._links = around.links
        for link in self._links:
            name = f"{link.leaf}-eth{link.leaf_port}"
            tap = make_tap(name)
            self._taps.append(tap)
            FabricIntf(name, node=around.leaves[link.leaf], port=link.leaf_port, **link.params)
            machine = self.machines[link.guest] = Machine(
                link.guest, system, around.folder, [Nic(link.mac, tap)], sockets=around.sockets, logs=around.logs,
                memory=self._memory,
            )
            machine.start()

    def wait_ready(self) -> None:
        """Wait until all machines run, and configure their network.  Raises GuestFailed."""
        for link in self._links:
            machine = self.machines[link.guest]
            self.boot_seconds[link.guest] = machine.wait_ready()
            machine.execute(configuration(link), f"configuring the network of {link.guest}")

    def nic_counts(self) -> dict[str, counts.NicCounts]:
        """Counts of each machine's RDMA device since its start.  Raises GuestFailed."""
        return {link.guest: counts.read(self.machines[link.guest], interface_name(link)) for link in self._links}

    def check(self) -> None:
        """Raise GuestFailed where a machine has ended."""
        for machine in self.machines.values():
            machine.check()

    def enter(self, name: str) -> list[str]:
        """The command that runs the one after it, a rank, in the machine ``name``."""
        return self.machines[name].attach(["env", *(f"{key}={value}" for key, value in self._engines.items())])

    def stop(self) -> None:
        """End the machines and remove the taps."""
        for machine in self.machines.values():
            machine.stop()
        self.machines.clear()
        for tap in self._taps:
            os.close(tap)
        self._taps.clear()


def configuration(link: GuestLink) -> str:
    """The shell script that configures the network of a guest."""
    name = interface_name(link)
    script = [
        "for what in all default; do echo 1 > /proc/sys/net/ipv6/conf/$what/disable_ipv6; done",
        "ip link set dev lo up",
        f"ip link set dev eth0 name {name}",
        f"ip link set dev {name} mtu {link.params['mtu']} up",
        f"ip address add {link.address}/32 dev {name}",
        f"ip route add default via {GATEWAY} dev {name} onlink src {link.address}",
        f"ip neigh replace {GATEWAY} lladdr {link.leaf_mac} dev {name} nud permanent",
    ]
    if link.fold_address:
        script.append(f"ip address add {link.fold_address}/32 dev {name}")
    if link.params["rate"] is not None:
        script += shaper(name, link.params["rate"])
    script += counts.filters(name)
    return "\n".join([*script, f"rdma link add {counts.RDMA_DEVICE} type rxe netdev {name}"])


def interface_name(link: GuestLink) -> str:
    """The name of a guest's interface: that of a host in a namespace."""
    return f"{link.guest}-eth{link.guest_port}"


def make_tap(name: str) -> int:
    """Make a tap in this process's network namespace; it lasts until its descriptor is closed.  Raises WiringError."""
    try:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        except OSError:
            os.close(tap)
            raise
    except OSError as error:
        raise WiringError(f"cannot make the tap {name}: {error.strerror}: expected /dev/net/tun, root or a sandbox, "
                          "and no interface of that name") from error
    return tap
