# SPDX-License-Identifier: Apache-2.0
"""Hosts on the ports of a switch under test, each in a network namespace of its own."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from netfold.wire import roce

T = TypeVar("T")

MTU = max(roce.LINK_MTUS.values())
"""MTU of the links in bytes: enough for every path MTU."""

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def sh(command: str) -> None:
    """Run a shell command.  Raises RuntimeError with its standard error where it fails."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


class VethHost:
    """A network namespace with one interface, eth0, whose other end is a port of the switch."""

    def __init__(self, number: int, address: str, mac: str) -> None:
        self.address, self.mac = address, mac
        # the open file keeps the namespace alive after the thread has ended
        self._namespace = _in_a_thread(lambda: _libc.unshare(_CLONE_NEWNET), "make a network namespace",
                                       lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        self._path = f"/proc/{os.getpid()}/fd/{self._namespace}"
        end = f"s{number}"
        sh(f"ip link add {end} type veth peer name h{number}; ip link set h{number} netns {self._path} name eth0")
        sh(f"sysctl -qw net.ipv6.conf.{end}.disable_ipv6=1; ip link set {end} mtu {MTU} up")
        self.run(f"sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set eth0 mtu {MTU} up;"
                 f" ip addr add {address}/24 dev eth0")

    def run(self, command: str) -> None:
        """Run a shell command in the namespace."""
        sh(f"nsenter --net={self._path} sh -ec '{command}'")

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Make a socket in this namespace."""
        made = _in_a_thread(lambda: _libc.setns(self._namespace, _CLONE_NEWNET), "enter a host's namespace",
                            lambda: socket.socket(family, kind, protocol))
        made.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        made.setsockopt(socket.SOL_SOCKET, 32, 16 << 20)  # SO_SNDBUFFORCE
        return made


def offloads(hosts: Sequence[VethHost], on: bool, gateway: str) -> None:
    """Turn segmentation offloads on for super-packets, or off for single packets.

    For single packets, the hosts get other MAC addresses than those packets are sent to, so that their network stacks
    ignore them.
    """
    state = "on" if on else "off"
    for number, host in enumerate(hosts, 1):
        features = " ".join(f"{f} {state}" for f in ("tx", "rx", "sg", "tso", "gso", "gro", "tx-udp-segmentation"))
        sh(f"ethtool -K s{number} {features}")
        host.run(f"ethtool -K eth0 {features}; ip link set eth0 address {host.mac if on else '02:00:00:00:ff:01'}")
        for other in hosts:
            if other is not host:
                host.run(f"ip neigh replace {other.address} lladdr {gateway} dev eth0 nud permanent")


def _in_a_thread(enter: Callable[[], int], what: str, make: Callable[[], T]) -> T:
    """Call ``make`` in a thread that ``enter`` has moved to a namespace.  Raises RuntimeError, OSError."""

    def work() -> T:
        if enter():
            raise RuntimeError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
        return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
