# SPDX-License-Identifier: Apache-2.0
"""The ends of cables to other machines: VXLAN interfaces of the kernel, where the switches' ports are.

The interface is made in the sandbox, and its UDP socket stays in the machine's own network namespace, from which the
other machines are reached.  Both go with the sandbox, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from typing import Any, Final

from netfold.topo.machines.description import VXLAN_BYTES, VXLAN_PORT, Description, VxlanCable, needed_mtu, remedy
from netfold.topo.network.guests import Surroundings
from netfold.topo.processes.failures import WiringError

SECONDS: Final = 30.0
"""Seconds for one command."""


class VxlanCables:
    """The cables of one machine to others, as a `Network` starts them: between its nodes and its switches.

    outside   file descriptor of the machine's own network namespace
    underlay  name of the interface by which the other machines are reached
    """

    names: Collection[str] = ()
    """No host of the fabric is more than a namespace here."""

    def __init__(self, description: Description, outside: int, underlay: str, offload: bool) -> None:
        self._description, self._outside, self._underlay, self._offload = description, outside, underlay, offload

    def start(self, around: Surroundings) -> None:
        """Make the interfaces and plug them in.  Raises WiringError."""
        from netfold.topo.network.wiring import NAME_LIMIT, FabricIntf  # Mininet, which a launcher may lack

        for cable in self._description.cables:
            name = f"{cable.switch}-eth{cable.port}"
            if len(name) > NAME_LIMIT:
                raise WiringError(f"interface name {name}: Linux takes {NAME_LIMIT} characters, got {len(name)}")
            outside = f"/proc/{os.getpid()}/fd/{self._outside}"
            done = run(["nsenter", f"--net={outside}", *self.command(cable, name)])
            if done.returncode != 0:
                raise WiringError(f"the cable {cable.switch}:{cable.port} - {cable.there} to machine {cable.machine}: "
                                  f"{' '.join(self.command(cable, name))}: {done.stderr.strip()}\nExpected a kernel "
                                  f"with VXLAN, and no other VXLAN interface of VNI {cable.vni} on this machine "
                                  "(--first-vni chooses others)")
            FabricIntf(name, node=around.leaves[cable.switch], port=cable.port, rate=cable.rate, offload=self._offload,
                       mtu=self._description.mtu)

    def command(self, cable: VxlanCable, name: str) -> list[str]:
        """The command that makes the interface of a cable in this process's network namespace."""
        return ["ip", "link", "add", "name", name, "netns", str(os.getpid()), "type", "vxlan", "id", str(cable.vni),
                "local", self._description.address, "remote", cable.remote, "dev", self._underlay, "dstport",
                str(VXLAN_PORT), "nolearning"]

    def wait_ready(self) -> None:
        """There is nothing to wait for."""

    def check(self) -> None:
        """Interfaces do not end by themselves."""

    def stop(self) -> None:
        """The interfaces go with the sandbox."""

    def enter(self, name: str) -> list[str]:
        """Never asked: `names` is empty."""
        raise KeyError(name)


def underlay(description: Description) -> str:
    """The name of the interface with the machine's address, whose MTU must be enough.  Raises WiringError."""
    done = run(["ip", "-json", "address", "show"])
    if done.returncode != 0:
        raise WiringError(f"ip address show: {done.stderr.strip()}")
    found: dict[str, tuple[str, int]] = {}
    interfaces: list[dict[str, Any]] = json.loads(done.stdout)
    for interface in interfaces:
        for address in interface.get("addr_info", ()):
            found[address.get("local", "")] = interface["ifname"], interface["mtu"]
    if description.address not in found:
        raise WiringError(f"machine {description.machine} has no address {description.address}: expected one of "
                          f"{', '.join(sorted(address for address in found if '.' in address))}; give it in the list "
                          "of machines, address=IPV4")
    name, mtu = found[description.address]
    if description.cables and mtu < description.mtu + VXLAN_BYTES:
        least = needed_mtu(description.fabric.path_mtu) + VXLAN_BYTES
        way = f"Give --underlay-mtu {mtu}" if mtu >= least else remedy(description.fabric.path_mtu)
        raise WiringError(f"machine {description.machine}: {name} ({description.address}) has MTU {mtu}: links of MTU "
                          f"{description.mtu} inside VXLAN, which takes {VXLAN_BYTES}, need "
                          f"{description.mtu + VXLAN_BYTES}. {way}")
    return name


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and output; one that is not installed has status 127."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
                              check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} is not installed on this machine")
