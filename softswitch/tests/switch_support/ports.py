# SPDX-License-Identifier: Apache-2.0
"""A switch between two hosts on veth pairs, and frames taken from the wire. Inside @in_own_network only.

h1 10.0.0.1 --- s1 [ port 1  switch  port 2 ] s2 --- 10.0.0.2 h2
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from softswitch.engine.entities import Event
from softswitch.p4runtime.process import Port, Settings, SwitchProcess
from switch_support.namespace import inside, sh
from switch_support.switch import probe_executable

MAC = {"h1": "00:00:00:01:00:01", "h2": "00:00:00:02:00:02"}
IP = {"h1": "10.0.0.1", "h2": "10.0.0.2"}
IP6 = {"h1": "fd00::1", "h2": "fd00::2"}
SWITCH_END = {"h1": "s1", "h2": "s2"}
_PEER = {"h1": "h2", "h2": "h1"}
BOUND = 30.0
"""Seconds for what must happen, on a machine that may stand still for some."""
_ETH_P_ALL = 0x0003
_IGNORE_OUTGOING = 23


def make_hosts(*, mtu: int = 1500, ipv6: bool = False) -> None:
    """Two hosts, each on a veth pair whose other end is ours; neighbours known, so that nobody asks for them.

    Without `ipv6` the kernel sends nothing by itself, also on an interface that a test adds later.
    """
    sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
    for host, end in SWITCH_END.items():
        sh(f"ip netns add {host}")
        sh(f"ip netns exec {host} sysctl -qw net.ipv6.conf.default.disable_ipv6={int(not ipv6)}")
        sh(f"ip link add {end} mtu {mtu} type veth peer name eth0 netns {host} address {MAC[host]} mtu {mtu}")
        sh(f"ip link set {end} up")
        peer = _PEER[host]
        sh(
            f"ip netns exec {host} sh -ec '"
            "sysctl -qw net.ipv6.conf.eth0.accept_dad=0;"
            f"ip addr add {IP[host]}/24 dev eth0; ip link set eth0 up; ip link set lo up;"
            f"ip neigh add {IP[peer]} lladdr {MAC[peer]} dev eth0 nud permanent'"
        )
        if ipv6:
            sh(
                f"ip netns exec {host} sh -ec 'ip addr add {IP6[host]}/64 dev eth0 nodad;"
                f"ip neigh add {IP6[peer]} lladdr {MAC[peer]} dev eth0 nud permanent'"
            )


@contextmanager
def switch(
    *,
    join: bool = True,
    vnet: bool = True,
    like_bmv2: bool = False,
    pcap: Path | None = None,
    queue: int = 1024,
    cpu_port: int | None = None,
    threads: int = 1,
    flags: tuple[str, ...] = (),
    on_event: Callable[[Event], None] | None = None,
    on_death: Callable[[str], None] | None = None,
) -> Iterator[SwitchProcess]:
    """A softswitch that runs the probe program between s1 (port 1) and s2 (port 2)."""
    settings = Settings((Port(1, "s1"), Port(2, "s2")), cpu_port, join=join, vnet=vnet, like_bmv2=like_bmv2, pcap=pcap,
                        queue=queue, threads=threads)
    process = SwitchProcess(probe_executable(flags=flags), settings, on_event=on_event, on_death=on_death)
    try:
        process.start()
        yield process
    finally:
        process.close()


def udp(host: str, *, port: int = 0, segment: int = 0, timeout: float = BOUND) -> socket.socket:
    """A UDP socket of a host; `segment` makes its sends super-packets of such segments."""
    with inside(host):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((IP[host], port))
    sock.settimeout(timeout)
    if segment:
        sock.setsockopt(17, 103, segment)  # UDP_SEGMENT
    return sock


class Tap:
    """Frames that arrive at an interface of a host, as they are on the wire."""

    def __init__(self, host: str, interface: str = "eth0", timeout: float = BOUND) -> None:
        with inside(host):
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            self._sock.setsockopt(263, _IGNORE_OUTGOING, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            self._sock.bind((interface, _ETH_P_ALL))
        self._sock.settimeout(timeout)

    def send(self, frame: bytes) -> None:
        self._sock.send(frame)

    def virtio(self) -> None:
        """From now on sends begin with a virtio_net_hdr; receiving on this tap is over."""
        self._sock.setsockopt(263, 15, 1)  # PACKET_VNET_HDR

    def try_send(self, frame: bytes) -> None:
        """Sends what the kernel takes."""
        with suppress(OSError):
            self._sock.send(frame)

    def send_super(self, frame: bytes, *, gso_type: int, gso_size: int, csum_start: int, csum_offset: int) -> None:
        """Sends a super-packet; receiving on this tap is over then."""
        self.virtio()
        self._sock.send(
            struct.pack("=BBHHHH", 1, gso_type, csum_start + 8, gso_size, csum_start, csum_offset) + frame
        )

    def take(self, n: int) -> list[bytes]:
        """The next n frames. Fails where they do not come."""
        frames: list[bytes] = []
        while len(frames) < n:
            try:
                frames.append(self._sock.recv(1 << 17))
            except TimeoutError:
                raise AssertionError(f"{len(frames)} of {n} frames came") from None
        return frames

    def rest(self) -> list[bytes]:
        """The frames that have arrived and were not read yet."""
        self._sock.setblocking(False)
        frames = []
        while True:
            try:
                frames.append(self._sock.recv(1 << 17))
            except BlockingIOError:
                return frames


def read_pcap(path: Path) -> list[bytes]:
    """The frames of a capture file."""
    data = path.read_bytes()
    assert struct.unpack_from("<IHH", data) == (0xA1B23C4D, 2, 4)
    frames, at = [], 24
    while at < len(data):
        _, _, kept, length = struct.unpack_from("<4I", data, at)
        assert kept == length
        frames.append(data[at + 16 : at + 16 + kept])
        at += 16 + kept
    return frames


def wait_for(what: Callable[[], bool], seconds: float = BOUND) -> None:
    """Asks until it is so; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)
